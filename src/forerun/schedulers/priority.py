"""Urgent requests first: one of priority p counts as if it had come p times `patience` seconds later than it did.

So who waits grows urgent, the order of two requests never changes, and nobody starves. A request whose number is lower
than that of a running one takes its slot where none is free.
Does not: know how long a text will be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, DueScheduler
from forerun.types import Facts, Setup


class PriorityScheduler(DueScheduler):
    """Decodes first, then prompts, each by priority and age."""

    facts = Facts(stall_free=True, evidence="docs/results/README.md#schedulers")

    @dataclass(frozen=True)
    class Options:
        """How many seconds of waiting are worth one step of priority, and whether slots are taken."""

        patience: float = 10.0
        takes: bool = True

        def __post_init__(self) -> None:
            if not self.patience > 0:
                raise ConfigError(f"scheduler option 'patience' is {self.patience}; give seconds above 0.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(patience=0.1)

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.slots = options, setup.max_requests

    def yielding(self, running: Sequence[Candidate], waiting: Sequence[Candidate], now: float) -> list[int]:
        if not self.options.takes or len(running) < self.slots:
            return []
        last, first = max(running, key=self.due), min(waiting, key=self.due)
        return [last.id] if first.priority < last.priority and self.due(first) < self.due(last) else []

    def victim(self, running: Sequence[Candidate], now: float) -> int:
        return max(running, key=self.due).id

    def due(self, candidate: Candidate) -> tuple[float, int]:
        """When it would have come if all were alike."""
        return candidate.arrived + self.options.patience * candidate.priority, candidate.arrival
