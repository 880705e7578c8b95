"""What a scheduler is: which requests run in this step, how many of their tokens, and who gives a slot up.

Does not: see texts or drafts. Times are seconds on the engine's clock.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from forerun.member import Member
from forerun.types import Setup


class Candidate(NamedTuple):
    """A request as a scheduler sees it."""

    id: int
    arrival: int  # a running number
    pending: int  # tokens that are not in the cache yet; 1 while decoding
    running: bool  # has a slot
    prompt: Sequence[int] = ()
    written: int = 0  # tokens of output
    limit: int = 1  # of these, at most
    scope: str = ""
    priority: int = 0  # the lower the sooner
    pace: float = 0.0  # tokens per second that are read; 0: not said
    arrived: float = 0.0
    drafted: float = 0.0  # nodes in each of its steps so far, on average

    @property
    def decoding(self) -> bool:
        """Whether its next pass yields a token, and nothing else waits to be read."""
        return self.pending == 1

    @property
    def held(self) -> int:
        """Tokens in the cache."""
        return len(self.prompt) + self.written - self.pending


@dataclass(frozen=True, slots=True)
class Pick:
    """Run the first `count` pending tokens of this request."""

    id: int
    count: int


class Scheduler(Member):
    """Orders the work of a step."""

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        """Ids of waiting requests in the order in which they get a slot."""

    @abstractmethod
    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        """Running requests and token counts, at most `room` tokens in total and at least one pick if any runs."""

    def yielding(self, running: Sequence[Candidate], waiting: Sequence[Candidate], now: float) -> Sequence[int]:
        """Ids of running requests that give their slots to waiting ones. Nobody by default."""
        return ()

    def victim(self, running: Sequence[Candidate], now: float) -> int:
        """Who gives its slot up where memory is short: the youngest by default."""
        return max(running, key=lambda c: c.arrival).id

    def saves(self, candidate: Candidate) -> bool:
        """Whether what a request holds is copied out when it gives its slot up, else computed again. Never by default.

        Copies lie in memory of the host; see `moved`.
        """
        return False

    def moved(self, tokens: int, seconds: float) -> None:
        """What a request held was copied out or back in, and how long it took."""

    def ended(self, candidate: Candidate) -> None:
        """A request as it was when it finished, failed or was aborted."""


class DueScheduler(Scheduler):
    """Lifts a time by which every request is due: slots go by it, and steps, decodes before prompts."""

    @abstractmethod
    def due(self, candidate: Candidate) -> tuple[float, int]:
        """When, and the order of those that are due together."""

    @final
    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return [c.id for c in sorted(waiting, key=self.due)]

    @final
    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        return in_order(sorted(running, key=lambda c: (not c.decoding, self.due(c))), room)


def in_order(candidates: Sequence[Candidate], room: int) -> list[Pick]:
    """As many of the pending tokens as there is room for, first come first."""
    picks: list[Pick] = []
    for c in candidates:
        count = min(c.pending, room)
        if count > 0:
            picks.append(Pick(c.id, count))
            room -= count
    return picks
