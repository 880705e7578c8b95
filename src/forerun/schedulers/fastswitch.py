"""Take turns, and switch cheaply: who has written `turn` tokens gives the slot to who waits (FastSwitch, 2411.18424).

What a request holds is copied out and back where that takes less time than computing it again would, by what copies
took here so far and what passes cost; else it is computed again.
Does not: overlap copies with passes; order blocks for larger transfers, as the paper does for a bus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup

SEEN = 32  # copies by which the next one's time is told


class FastswitchScheduler(Scheduler):
    """Decodes first; slots go round."""

    facts = Facts(
        keys=("fastswitch",), paper="2411.18424", stall_free=True, evidence="docs/results/README.md#schedulers"
    )

    @dataclass(frozen=True)
    class Options:
        """Tokens that a request writes before another gets its slot."""

        turn: int = 64

        def __post_init__(self) -> None:
            if self.turn < 1:
                raise ConfigError(f"scheduler option 'turn' is {self.turn}; give 1 or more.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(turn=3)

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.slots, self.costs = options, setup.max_requests, setup.costs()
        self._copies: list[float] = []  # seconds per token, of the last ones
        self._began: dict[int, int] = {}  # running request -> what it had written when its turn began
        self._places: dict[int, int] = {}  # request -> its place in the line
        self._next = 0  # place

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        for c in sorted(waiting, key=lambda c: c.arrival):
            if c.id not in self._places:
                self._queue(c.id)
        return [c.id for c in sorted(waiting, key=self._place)]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        for c in running:
            self._began.setdefault(c.id, c.written)
        return in_order(sorted(running, key=lambda c: (not c.decoding, self._place(c))), room)

    def yielding(self, running: Sequence[Candidate], waiting: Sequence[Candidate], now: float) -> list[int]:
        if len(running) < self.slots:
            return []
        done = [c for c in running if c.written - self._began.get(c.id, c.written) >= self.options.turn]
        first = sorted(done, key=self._place)[: len(waiting)]
        for c in first:
            self._queue(c.id)
        return [c.id for c in first]

    def victim(self, running: Sequence[Candidate], now: float) -> int:
        last = max(running, key=self._place)
        self._began.pop(last.id, None)
        return last.id

    def saves(self, candidate: Candidate) -> bool:
        copying = 2 * candidate.held * median(self._copies) if self._copies else 0.0
        return copying < self.costs.of(candidate.held)

    def moved(self, tokens: int, seconds: float) -> None:
        self._copies = [*self._copies[1 - SEEN :], seconds / max(tokens, 1)]

    def ended(self, candidate: Candidate) -> None:
        self._began.pop(candidate.id, None)
        self._places.pop(candidate.id, None)

    def _queue(self, number: int) -> None:
        """To the end of the line."""
        self._began.pop(number, None)
        self._places[number] = self._next
        self._next += 1

    def _place(self, c: Candidate) -> int:
        return self._places.get(c.id, c.arrival)
