"""What a planner is: how many nodes each request may draft in this step, and which of them are verified.

Zero is always allowed. What stays of a draft may depend on everything but the drawn token of the node in question: by
its `confidence`, which does not, a node may go with its descendants and its younger siblings.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.member import Member
from forerun.types import Context, Draft, Setup, Turn


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time of a step went, in seconds."""

    drafting: float
    running: float  # the target's pass
    rows: int  # of that pass


class Planner(Member):
    """Shares the step's verification budget among requests."""

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes per request; at most `room` in total. The engine cuts further where a text is about to end."""

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """What will be verified of drafts that were made within the shares; see `Draft.only`. Everything by default."""
        return drafts

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        """What became of the drafts of a step, of every request that wrote something. Does nothing unless it learns."""
