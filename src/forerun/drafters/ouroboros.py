"""What a small model drafts is lengthened by phrases that the target wrote while it judged earlier drafts (2402.13720).

Behind a refused token the target's own likeliest tokens are still nearly what it would write, so they go into a pool,
as phrases by their first token; so does what was accepted. A draft of the drafter that is held goes on with the newest
phrases that begin with its last token, which costs no pass of the small model.
Does not: speed up the small model's own drafting by these phrases, as the paper does too; lengthen more than one leaf.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from forerun.drafters.contract import Drafter
from forerun.drafting.pool import Pool
from forerun.errors import ConfigError
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

Phrase = tuple[int, ...]
SURE = 0.5  # of a phrase's token, about; what the held drafter says of its own must not depend on whether there is one


class Phrases:
    """What may follow a token; the newest first."""

    def __init__(self, each: int, keys: int) -> None:
        self._each, self._keys = each, keys
        self._held: dict[int, list[Phrase]] = {}

    def add(self, phrase: Phrase) -> None:
        """Keep the newest of every first token, and the tokens that came last."""
        held = [known for known in self._held.pop(phrase[0], []) if known != phrase[1:]]
        self._held[phrase[0]] = [phrase[1:], *held][: self._each]
        if len(self._held) > self._keys:
            del self._held[next(iter(self._held))]

    def after(self, token: int) -> Sequence[Phrase]:
        """Phrases that the token begins, without it."""
        return self._held.get(token, ())


@dataclass(eq=False, slots=True)
class _Seat:
    """One request: what the held drafter sees of it, and its phrases."""

    inner: Context
    phrases: Phrases


class OuroborosDrafter(Drafter):
    """Holds a drafter, and lengthens its drafts."""

    facts = Facts(
        keys=("ouroboros",),
        paper="2402.13720",
        needs=frozenset({Need.SECOND_MODEL, Need.LOGITS, Need.BRANCHING}),
        draws=True,
        learns=True,
        evidence="docs/results/README.md#ouroboros",
    )

    @dataclass(frozen=True)
    class Options:
        """`of`: the drafter that is held, spelled; at most `each` phrases of `length` tokens behind its draft.

        `keys`: tokens of which phrases are kept; `shared`: one pool for all requests of a scope.
        """

        of: str = "draft-model"
        length: int = 4
        each: int = 2
        keys: int = 50_000
        shared: bool = True

        def __post_init__(self) -> None:
            if self.of.partition(":")[0].strip() == "ouroboros":
                raise ConfigError("drafter 'ouroboros' holds itself; name another one, as in ouroboros:of=draft-model.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.inner: Drafter = setup.open_drafter(options.of, setup)
        self.hidden = self.inner.hidden
        self.pool = Pool(lambda: Phrases(options.each, options.keys), shared=options.shared)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(of="draft-model:model=toy:100,depth=2", length=1, each=1)

    def start(self, context: Context) -> _Seat:
        return _Seat(replace(context, state=self.inner.start(context)), self.pool.of(context))

    def pause(self, context: Context) -> None:
        self.inner.pause(context.state.inner)

    def resume(self, context: Context) -> None:
        self.inner.resume(context.state.inner)

    def stop(self, context: Context) -> None:
        self.inner.stop(context.state.inner)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        kept = [min(self.options.length * self.options.each, budget // 2) for budget in budgets]
        rooms = [budget - kept for budget, kept in zip(budgets, kept, strict=True)]
        drafts = self.inner.propose([context.state.inner for context in batch], rooms)
        triples = zip(batch, drafts, budgets, strict=True)
        return [self._lengthened(context, draft, budget) for context, draft, budget in triples]

    def _lengthened(self, context: Context, draft: Draft, budget: int) -> Draft:
        """The draft, and phrases below its deepest node."""
        leaf = max(range(len(draft)), key=draft.depths.__getitem__, default=-1)
        nodes: dict[tuple[int, int], int] = {}  # parent and token -> node
        for phrase in context.state.phrases.after(draft.tokens[leaf] if draft else context.tokens[-1]):
            node = leaf
            for token in phrase[: budget - len(draft) - len(nodes)]:
                node = nodes.setdefault((node, token), len(draft) + len(nodes))
        if not nodes:
            return draft
        more = len(nodes)
        sources = (*map(draft.source_of, range(len(draft))), *["ouroboros"] * more)
        return replace(
            draft,
            tokens=draft.tokens + tuple(token for _, token in nodes),
            parents=draft.parents + tuple(parent for parent, _ in nodes),
            q=draft.q + (None,) * more if draft.q is not None else None,
            confidence=draft.confidence + (SURE,) * more if draft.confidence is not None else None,
            source=sources,
        )

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        """The held drafter's nodes come first in the draft, so that it reads the outcome as its own."""
        self.inner.observe([context.state.inner for context in batch], outcomes)
        length = self.options.length + 1
        for context, outcome in zip(batch, outcomes, strict=True):
            draft, verdict = outcome.draft, outcome.verdict
            if draft is not None and verdict is not None:
                new = [*(draft.tokens[node] for node in verdict.path), verdict.token]
                text = [*context.tokens[-length:], *new]
                for phrase in chain(_said(draft, outcome.output.best, length), _pieces(text, length)):
                    context.state.phrases.add(phrase)


def _said(draft: Draft, best: Sequence[int], length: int) -> Iterator[Phrase]:
    """What the target wrote along every path to a leaf, in pieces; `best` after the root, then after each node."""
    for leaf in range(-1, len(draft)):
        if draft.children(leaf):
            continue
        path, node = [best[leaf + 1]], leaf
        while node >= 0:
            node = draft.parents[node]
            path.append(best[node + 1])
        path.reverse()
        yield from _pieces(path, length)


def _pieces(tokens: Sequence[int], length: int) -> Iterator[Phrase]:
    """From every token on, as long as there is something behind it."""
    for start in range(len(tokens) - 1):
        yield tuple(tokens[start : start + length])
