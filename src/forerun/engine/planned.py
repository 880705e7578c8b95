"""A drafter whose drafts the planner cuts before they are verified; the planner sees what the target made of them."""

from collections.abc import Sequence
from typing import Any

from forerun.drafters.contract import Drafter
from forerun.planners.contract import Planner
from forerun.types import Context, Draft, Outcome


class Planned(Drafter):
    """Wraps a drafter with the same contract."""

    def __init__(self, inner: Drafter, planner: Planner) -> None:
        self.inner, self.facts, self.planner = inner, inner.facts, planner
        self.hidden = tuple(dict.fromkeys((*inner.hidden, *planner.hidden)))

    def start(self, context: Context) -> Any:  # noqa: ANN401 - the drafter's own
        return self.inner.start(context)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        return list(self.planner.cut(batch, self.inner.propose(batch, budgets)))

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.planner.see(batch, outcomes)
        self.inner.observe(batch, outcomes)

    def stop(self, context: Context) -> None:
        self.inner.stop(context)
