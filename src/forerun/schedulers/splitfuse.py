"""Dynamic SplitFuse: every step has the same number of tokens; long prompts are cut, short ones composed (2401.08671).

The number is the smallest whose pass is nearly as good a use of the machine as the best of those that were measured.
Does not: look at how much context a step reads, as `sarathi` does; count drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Costs, Facts, Setup

NEARLY = 0.9  # of the best throughput


class SplitfuseScheduler(Scheduler):
    """Decodes, then prompts by arrival, to exactly so many tokens."""

    facts = Facts(keys=("splitfuse",), paper="2401.08671", stall_free=True)

    @dataclass(frozen=True)
    class Options:
        """Tokens of a step; 0: as what passes cost here says."""

        tokens: int = 0

        def __post_init__(self) -> None:
            if self.tokens < 0:
                raise ConfigError(f"scheduler option 'tokens' is {self.tokens}; give 0 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.tokens = options.tokens or knee(setup.costs())

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return [c.id for c in sorted(waiting, key=lambda c: c.arrival)]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        decodes = sum(c.decoding for c in running)
        left = min(room, max(self.tokens, decodes + 1))  # whoever reads gets on, whoever decodes is never left out
        return in_order(sorted(running, key=lambda c: (not c.decoding, c.arrival)), left)


def knee(costs: Costs) -> int:
    """The smallest width with nearly the throughput of the best, of those that were measured."""
    rates = [rows / seconds for rows, seconds in zip(costs.rows, costs.seconds, strict=True)]
    return next(rows for rows, rate in zip(costs.rows, rates, strict=True) if rate >= NEARLY * max(rates))
