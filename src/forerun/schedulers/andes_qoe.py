"""Whose reader would have to wait first is next: a token is due when a reader of that pace gets to it (2404.16283).

Where slots are short, who is `lead` seconds ahead of the reader gives one to a request whose reader waits already.
Does not: weigh how much each reader minds, as the paper's knapsack does; tokens past due count alike, the oldest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, DueScheduler
from forerun.types import Facts, Setup


class AndesQoeScheduler(DueScheduler):
    """Decodes first; slots and prompts go by when the next token is due, memory by arrival."""

    facts = Facts(
        keys=("andes-qoe",), paper="2404.16283", stall_free=True, evidence="docs/results/README.md#schedulers"
    )

    @dataclass(frozen=True)
    class Options:
        """What readers expect: seconds to the first token, tokens per second; and the lead that gives a slot up."""

        first: float = 1.0
        pace: float = 5.0
        lead: float = 2.0

        def __post_init__(self) -> None:
            for name in ("first", "pace", "lead"):
                if not getattr(self, name) > 0:
                    raise ConfigError(f"scheduler option {name!r} is {getattr(self, name)}; give more than 0.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(first=0.02, pace=50.0, lead=0.1)

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.slots = options, setup.max_requests

    def yielding(self, running: Sequence[Candidate], waiting: Sequence[Candidate], now: float) -> list[int]:
        if len(running) < self.slots or not waiting:
            return []
        ahead, behind = max(running, key=self.due), min(waiting, key=self.due)
        late = self.due(behind)[0] <= now
        return [ahead.id] if late and self.due(ahead)[0] > now + self.options.lead else []

    def due(self, candidate: Candidate) -> tuple[float, int]:
        """When the reader wants the next token."""
        c = candidate
        return c.arrived + self.options.first + c.written / (c.pace or self.options.pace), c.arrival
