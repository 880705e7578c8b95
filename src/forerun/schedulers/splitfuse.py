"""Dynamic SplitFuse: every step has the same number of tokens; long prompts are cut, short ones composed (2401.08671).

The number is the first power of two whose pass is nearly as good a use of the machine as the largest passes are.
Does not: look at how much context a step reads, as `sarathi` does; count drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Costs, Facts, Setup

NEARLY = 0.8  # of the throughput of passes without end
MOST = 1 << 16


class SplitfuseScheduler(Scheduler):
    """Decodes, then prompts by arrival, to exactly so many tokens."""

    facts = Facts(
        keys=("splitfuse",), paper="2401.08671", stall_free=True, evidence="docs/results/README.md#schedulers"
    )

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
    """Where more tokens stop making a pass a much better use of its time; behind the last width costs are a line."""
    last, tokens = costs.rows[-1], 1
    each = costs.of(last + 1) - costs.of(last)
    while tokens < MOST and tokens * each < NEARLY * costs.of(tokens):
        tokens *= 2
    return tokens
