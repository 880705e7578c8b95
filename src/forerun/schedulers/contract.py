"""What a scheduler is: which requests run in this step, and how many of their tokens.

Does not: see texts or drafts. Admission to a free slot is asked in the same order.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.member import Member


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request as a scheduler sees it."""

    id: int
    arrival: int  # a running number
    pending: int  # tokens that are not in the cache yet; 1 while decoding
    running: bool  # has a slot


@dataclass(frozen=True, slots=True)
class Pick:
    """Run the first `count` pending tokens of this request."""

    id: int
    count: int


class Scheduler(Member):
    """Orders the work of a step."""

    @abstractmethod
    def __init__(self, options: Any) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def admit(self, waiting: Sequence[Candidate]) -> list[int]:
        """Ids of waiting requests in the order in which they get a slot."""

    @abstractmethod
    def pick(self, running: Sequence[Candidate], room: int) -> list[Pick]:
        """Running requests and token counts, at most `room` tokens in total and at least one pick if any runs."""
