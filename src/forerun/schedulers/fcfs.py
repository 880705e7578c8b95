"""First come, first served: who decodes goes on, prompts are read in chunks with what room is left.

Does not: prefer short prompts, or take a slot from a running request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.schedulers.contract import Candidate, Pick, Scheduler
from forerun.types import Facts


class FcfsScheduler(Scheduler):
    """Decodes first, then prompts by arrival."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def admit(self, waiting: Sequence[Candidate]) -> list[int]:
        return [c.id for c in sorted(waiting, key=lambda c: c.arrival)]

    def pick(self, running: Sequence[Candidate], room: int) -> list[Pick]:
        picks: list[Pick] = []
        for c in sorted(running, key=lambda c: (c.pending > 1, c.arrival)):
            count = min(c.pending, room)
            if count > 0:
                picks.append(Pick(c.id, count))
                room -= count
        return picks
