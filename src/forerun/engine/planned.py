"""A drafter whose drafts are cut before they are verified; the planner sees what the target made of them.

What a request's constraint forbids goes first, whoever guessed it; the planner cuts what is left.
"""

from collections.abc import Sequence
from typing import Any

from forerun.drafters.contract import Drafter
from forerun.planners.contract import Planner
from forerun.sampling import path_to
from forerun.types import Context, Draft, Outcome


class Planned(Drafter):
    """Wraps a drafter with the same contract."""

    def __init__(self, inner: Drafter, planner: Planner) -> None:
        self.inner, self.facts, self.planner = inner, inner.facts, planner
        self.hidden = tuple(dict.fromkeys((*inner.hidden, *planner.hidden)))

    @property
    def listens(self) -> bool:
        return self.inner.listens

    @property
    def watches(self) -> bool:
        return self.inner.watches or self.planner.watches

    def start(self, context: Context) -> Any:  # noqa: ANN401 - the drafter's own
        return self.inner.start(context)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        drafts = self.inner.propose(batch, budgets)
        if not any(drafts):
            return drafts
        return list(self.planner.cut(batch, [_possible(*one) for one in zip(batch, drafts, strict=True)]))

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.planner.see(batch, outcomes)
        self.inner.observe(batch, outcomes)

    def stop(self, context: Context) -> None:
        self.inner.stop(context)


def _possible(context: Context, draft: Draft) -> Draft:
    """The draft without what the request's constraint forbids."""
    if context.guide is None or not draft.tokens:
        return draft
    return draft.possible(context.guide.allows([path_to(draft, node) for node in range(len(draft))]))
