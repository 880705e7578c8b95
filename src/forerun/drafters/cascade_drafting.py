"""Larger drafters guess the early tokens and smaller ones the later (cascade speculative drafting, 2312.11462).

The horizontal cascade: drafters are asked in the order of the list, and each goes on behind the deepest node that its
elders left, while there is room. The vertical cascade is `staged`: a small model of the list is itself sped up by the
next smaller one, and the last of all is a look-up. So late tokens, which are seldom reached, cost the least.
Does not: go on behind more than one node of a tree; choose the lengths, which the drafters' `depth` and `width` say;
loosen the review between two drafters, as the paper's lenience does: here no drafter reviews another's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError
from forerun.rng import RngPart
from forerun.sampling import path_to
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

_NOTHING = Draft()


class CascadeDraftingDrafter(Drafter):
    """Holds drafters, each behind the one before."""

    facts = Facts(
        keys=("cascade-drafting",),
        paper="2312.11462",
        needs=frozenset({Need.SECOND_MODEL}),
        draws=True,
        evidence="docs/results/README.md#cascade",
    )

    @dataclass(frozen=True)
    class Options:
        """`of`: drafters, spelled, the largest first."""

        of: tuple[str, ...] = ("staged:depth=4", "ngram")

        def __post_init__(self) -> None:
            if not self.of:
                message = "drafter 'cascade-drafting' holds no drafter"
                raise ConfigError(f"{message}; name some, as in cascade-drafting:of=[(staged:depth=4),ngram].")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.drafters: list[Drafter] = [setup.open_drafter(spelled, setup) for spelled in options.of]
        self.hidden = tuple(sorted({layer for drafter in self.drafters for layer in drafter.hidden}))
        for spelled, drafter in list(zip(options.of, self.drafters, strict=True))[1:]:
            if not drafter.facts.ahead:
                message = f"drafter 'cascade-drafting': {spelled!r} cannot go on behind another's draft"
                raise ConfigError(f"{message}; put it first, or use staged or ngram in its place.")

    @classmethod
    def toy(cls) -> Options:
        copy = "ngram:width=2,min_match=1,max_match=2"
        return cls.Options((f"staged:model=toy:100,depth=1,by=({copy})", copy))

    def start(self, context: Context) -> list[Context]:
        """What each of the drafters sees of the request."""
        count = len(self.drafters)
        own = [replace(context, rng=RngPart(context.rng, number, count)) for number in range(count)]
        return [replace(one, state=drafter.start(one)) for drafter, one in zip(self.drafters, own, strict=True)]

    def pause(self, context: Context) -> None:
        for drafter, own in zip(self.drafters, context.state, strict=True):
            drafter.pause(own)

    def resume(self, context: Context) -> None:
        for drafter, own in zip(self.drafters, context.state, strict=True):
            drafter.resume(own)

    def stop(self, context: Context) -> None:
        for drafter, own in zip(self.drafters, context.state, strict=True):
            drafter.stop(own)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        drafts = [_NOTHING] * len(batch)
        for number, drafter in enumerate(self.drafters):
            due = [i for i, draft in enumerate(drafts) if len(draft) < budgets[i]]
            ends = [deepest(drafts[i]) for i in due]
            contexts = [
                replace(batch[i].state[number], ahead=path_to(drafts[i], end)) for i, end in zip(due, ends, strict=True)
            ]
            found = drafter.propose(contexts, [budgets[i] - len(drafts[i]) for i in due]) if due else []
            for i, end, more in zip(due, ends, found, strict=True):
                drafts[i] = joined(drafts[i], end, more) if len(more) else drafts[i]
        return drafts

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for number, drafter in enumerate(self.drafters):
            drafter.observe([context.state[number] for context in batch], outcomes)


def deepest(draft: Draft) -> int:
    """The first of a draft's deepest nodes; -1 where it has none."""
    return max(range(len(draft)), key=draft.depths.__getitem__, default=-1)


def joined(draft: Draft, end: int, more: Draft) -> Draft:
    """A draft that goes on behind one of its nodes."""
    both = (draft, more) if len(draft) else (more,)
    parents = (*draft.parents, *(parent + len(draft) if parent >= 0 else end for parent in more.parents))
    q = tuple(one for part in both for one in part.q or (None,) * len(part))
    return Draft(
        draft.tokens + more.tokens,
        parents,
        q if any(one is not None for one in q) else None,
        tuple(chance for part in both for chance in part.confidence or _unknown(part)),
        tuple(part.source_of(node) for part in both for node in range(len(part))),
        more.error or draft.error,
    )


UNKNOWN = 0.5  # confidence of whoever gives none


def _unknown(draft: Draft) -> tuple[float, ...]:
    return (UNKNOWN,) * len(draft)
