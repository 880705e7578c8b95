"""Traversal verification: from the leaves to the root, whole paths at a time (2505.12398, alg. 2).

A node has a weight: the share of its path's draft that the target can still accept, min(1, weight of its parent times
p(x) / q(x)). The first leaf is accepted with its weight. A refused leaf is taken off, its parent's p becomes
norm(max(weight p - q, 0)) and its weight total / (total + 1 - weight), with the total before norming; then the next
sibling's paths are tried, and a node without untried children is a leaf itself. On a chain it is block verification
(2403.10444): never fewer tokens are accepted on average than by judging them one by one.
Does not: judge siblings jointly; they are refused one after the other, as by `rejection`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forerun.rng import Purpose, Rng
from forerun.types import Dist, Draft, Facts, Floats, Target, Verdict
from forerun.verifiers.contract import SoloVerifier
from forerun.verifiers.rejection import accepted_in_turn


class TraversalVerifier(SoloVerifier):
    """Accept the deepest path that the target's law allows."""

    facts = Facts(paper="2505.12398", evidence="docs/results/README.md#acceptance")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        path, p = climb(draft, target, rng, draft.children)
        return Verdict(path, rng.categorical(p, Purpose.TARGET, len(path)))

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        return accepted_in_turn(p, q, count)  # one level holds nothing to judge jointly


@dataclass(slots=True)
class _Reached:
    """A node on the way to a leaf, and what its refused children have left of it."""

    node: int
    before: Dist  # p, but for the last refusal
    weight: float
    untried: Iterator[int]
    rest: tuple[Floats, float] | None = None  # of the last refusal: what is left, and its sum

    @property
    def p(self) -> Dist:
        """What is left of p; normed only when somebody asks, which costs a pass over the vocabulary."""
        if self.rest is not None:
            left, total = self.rest
            self.before, self.rest = Dist(left / left.dtype.type(total), self.before.ids), None
        return self.before

    def refuse(self, q: Dist) -> None:
        """A child that was drawn from q is taken off."""
        p = self.p
        rest, total = p.beyond(q, self.weight)
        if p.only is None and total > 0:
            self.rest = rest, total
        if self.weight < 1:
            self.weight = total / (total + 1 - self.weight)


def climb(
    draft: Draft, target: Target, rng: Rng, children: Callable[[int], Sequence[int]], start: tuple[int, ...] = ()
) -> tuple[tuple[int, ...], Dist]:
    """The accepted path below what is accepted already, and what the token after it is to be drawn from."""
    first = start[-1] if start else -1
    trail = [_Reached(first, target[first], 1.0, iter(children(first)))]
    while True:
        here = trail[-1]
        child = next(here.untried, None)
        if child is not None:
            x, q = draft.tokens[child], draft.drawn_from(child)
            weight = min(1.0, here.weight * here.p.prob(x) / q.prob(x))
            trail.append(_Reached(child, target[child], weight, iter(children(child) if weight > 0 else ())))
        elif rng.bernoulli(here.weight, Purpose.ACCEPT, len(start) + len(trail), here.node):
            return (*start, *(reached.node for reached in trail[1:])), here.p
        else:
            trail.pop()
            trail[-1].refuse(draft.drawn_from(here.node))
