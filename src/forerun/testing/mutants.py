"""Verifiers and a drafter that are wrong on purpose, as real engines have been wrong: a test must fail on each.

Every rule differs from the right one in a single place. Does not: work; never put one of these in a table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.drafters.contract import SoloDrafter
from forerun.models.toy import ToyModel
from forerun.rng import Purpose, Rng
from forerun.types import Context, Dist, Draft, Facts, Setup, Target, Verdict
from forerun.verifiers.contract import SoloVerifier

Key = tuple[Purpose, int, int]


@dataclass(frozen=True)
class Refused:
    """What the rule may look at after it refused `child`."""

    p: Dist
    q: Dist
    child: int
    draft: Draft
    target: Target


@dataclass(frozen=True)
class Rule:
    """Rejection sampling in its parts; the defaults are right."""

    lenience: float = 1.0
    q_of: Callable[[Draft, int], int] = lambda _draft, child: child  # whose q a node is judged by
    rest: Callable[[Refused], Dist] = lambda r: r.p.minus(r.q)
    bonus: Callable[[Draft, Target, int], Dist] = lambda _draft, target, node: target[node]
    accept_key: Callable[[int, int], Key] = lambda depth, child: (Purpose.ACCEPT, depth, child)
    draw_key: Callable[[int, int], Key] = lambda depth, _last: (Purpose.TARGET, depth, 0)


class Mutant(SoloVerifier):
    """Judges by a Rule, which says that it is exact."""

    facts = Facts(paper="2211.17192, spoiled")
    Options = Rule

    def __init__(self, options: Rule) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        rule, node, last, path = self.options, -1, -1, tuple[int, ...]()
        while True:
            p, children = target[node], draft.children(node)
            for child in children:
                last, x, q = child, draft.tokens[child], draft.drawn_from(rule.q_of(draft, child))
                chance = rule.lenience * p.prob(x) / max(q.prob(x), 1e-30)
                if rng.bernoulli(chance, *rule.accept_key(len(path), child)):
                    node, path = child, (*path, child)
                    break
                p = rule.rest(Refused(p, q, child, draft, target))
            else:
                p = p if children else rule.bonus(draft, target, node)
                return Verdict(path, rng.categorical(p, *rule.draw_key(len(path), last)))


def _parent(draft: Draft, node: int) -> int:
    return draft.parents[node] if node >= 0 else -1


def _last_key(depth: int, last: int) -> Key:
    """The key of the last decision; that of the target's draw where there was none."""
    return (Purpose.ACCEPT, last, last) if last >= 0 else (Purpose.TARGET, depth, 0)


def _half(refused: Refused) -> Dist:
    rest = np.maximum(refused.p.probs.astype(np.float16) - _dense(refused.q, refused.p), 0)
    total = rest.sum(dtype=np.float16)
    return Dist((rest / total).astype(refused.p.probs.dtype), refused.p.ids) if total > 0 else refused.p


def _dense(q: Dist, p: Dist) -> np.ndarray:
    ids = np.arange(len(p.probs)) if p.ids is None else p.ids
    return q.at(ids).astype(np.float16)


def _soft(refused: Refused) -> Dist:
    return refused.p.minus(Dist.point(refused.draft.tokens[refused.child]))


MUTANTS: dict[str, Rule] = {
    "the bonus from the previous row": Rule(bonus=lambda draft, target, node: target[_parent(draft, node)]),
    "the bonus from the draft": Rule(bonus=lambda d, target, node: d.drawn_from(node) if node >= 0 else target[node]),
    "a residual of the row after the refused token": Rule(rest=lambda r: r.target[r.child].minus(r.q)),
    "accepted by the q of another row": Rule(q_of=lambda draft, child: min(child + 1, len(draft) - 1)),
    "redrawn from p, not from the residual": Rule(rest=lambda r: r.p),
    "the residual of a point where q is soft": Rule(rest=_soft),
    "one number for all positions": Rule(accept_key=lambda _depth, _child: (Purpose.ACCEPT, 0, 0)),
    "one number to accept and to draw": Rule(draw_key=_last_key),
    "accepted by a twentieth too often": Rule(lenience=1.05),
    "a residual in half precision": Rule(rest=_half),
}


@dataclass(frozen=True)
class Slip:
    """One function of a real verifier, replaced by one that is nearly right."""

    verifier: str
    function: str  # below forerun.verifiers
    wrong: Callable[[Any], Any]  # the right one -> its replacement


def _unlowered(right: Callable[..., None]) -> Callable[..., None]:
    """A refused child changes its parent's p, and not its weight."""

    def refuse(reached: Any, q: Dist) -> None:  # noqa: ANN401 - traversal's own
        weight = reached.weight
        right(reached, q)
        reached.weight = weight

    return refuse


def _weightless(right: Callable[..., None]) -> Callable[..., None]:
    """What is left of p is computed as if the path had been accepted so far."""

    def refuse(reached: Any, q: Dist) -> None:  # noqa: ANN401
        weight, reached.weight = reached.weight, 1.0
        right(reached, q)
        reached.weight = weight

    return refuse


def _other_side(right: Any) -> Callable[..., Any]:  # noqa: ANN401
    def ahead(block: Any, count: int) -> Any:  # noqa: ANN401
        chances = right(block, count)
        return None if chances is None else 1 - chances

    return ahead


SLIPS: dict[str, Slip] = {
    "a threshold that leaves less than nothing": Slip(
        "spectr", "spectr.threshold", lambda right: lambda *args: max(1.0, 0.8 * right(*args))
    ),
    "many drafts that take as much as one": Slip(
        "spectr", "spectr.taken", lambda right: lambda p, q, _count, rho: right(p, q, 1, rho)
    ),
    "the chosen draft judged as if drawn": Slip(
        "canonical-multidraft", "canonical_multidraft.Weights.of_one", lambda _right: lambda _weights, _token, q: q
    ),
    "the residual of a draft that was not chosen": Slip(
        "canonical-multidraft", "canonical_multidraft.Weights.law", lambda _right: lambda _weights, q: q
    ),
    "a choice whose residual is the draft's": Slip(
        "optimal-multidraft", "optimal_multidraft.Plan.law", lambda _right: lambda _plan, q: q
    ),
    "places on the other side": Slip("optimal-multidraft", "optimal_multidraft.Block.ahead", _other_side),
    "the youngest of a block": Slip(
        "optimal-multidraft",
        "optimal_multidraft.Block.foremost",
        lambda _right: lambda _block, places, _early: max(places),
    ),
    "drawn siblings that share nothing judged jointly": Slip(
        "optimal-multidraft",
        "contract.Siblings.shared",
        lambda _right: property(lambda siblings: siblings.draft.q[siblings.nodes[0]] if siblings.nodes else None),
    ),
    "a weight that is not lowered": Slip("traversal", "traversal._Reached.refuse", _unlowered),
    "a residual without the weight": Slip("traversal", "traversal._Reached.refuse", _weightless),
    "a block whose weight is not lowered": Slip("block", "traversal._Reached.refuse", _unlowered),
    "a block whose residual has no weight": Slip("block", "traversal._Reached.refuse", _weightless),
    "siblings below a block refused for nothing": Slip(
        "block",
        "block.in_turn",
        lambda right: lambda p, siblings: (right(p, siblings)[0], p),
    ),
}


class SpoiledDrafter(SoloDrafter):
    """Draws a chain at one temperature and reports the q of another."""

    facts = Facts(draws=True, paper="2211.17192, spoiled")

    @dataclass(frozen=True)
    class Options:
        """`temperature` of the draws; the reported q is that of 1."""

        temperature: float = 0.8
        depth: int = 2
        seed: int = 100

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.model = options, ToyModel(setup.vocab, options.seed)

    def propose_one(self, context: Context, budget: int) -> Draft:
        tokens: list[int] = []
        reported: list[Dist] = []
        for depth in range(min(budget, self.options.depth)):
            q = self.model.probs([*context.tokens, *tokens])
            drawn = q ** (1 / self.options.temperature)
            tokens.append(context.rng.categorical(Dist(drawn / drawn.sum()), Purpose.DRAFT, depth))
            reported.append(Dist(q))
        return Draft.chain(tokens, "spoiled", tuple(reported))
