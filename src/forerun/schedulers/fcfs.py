"""First come, first served: who decodes goes on, prompts are read in chunks with what room is left.

Does not: prefer short prompts, or take a slot from a running request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup


class FcfsScheduler(Scheduler):
    """Decodes first, then prompts by arrival."""

    facts = Facts(stall_free=True)

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return [c.id for c in sorted(waiting, key=lambda c: c.arrival)]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        return in_order(sorted(running, key=lambda c: (not c.decoding, c.arrival)), room)
