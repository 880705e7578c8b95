"""As many nodes as cost next to nothing: a pass waits for the weights, and carries further rows meanwhile.

The costs of passes are measured on this machine. Does not: look at acceptance (a node that is hardly ever right is
still cheap); give a seed the same text on two machines, or twice where costs are measured anew, because times differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.planners.contract import Planner
from forerun.types import Context, Facts, Setup


class FreePlanner(Planner):
    """The widest pass that takes at most `price` times as long as one without drafts, shared evenly."""

    facts = Facts(clocked=True)

    @dataclass(frozen=True)
    class Options:
        """`price`: what a pass with drafts may cost, where one without costs 1."""

        price: float = 1.25

        def __post_init__(self) -> None:
            if not self.price >= 1:
                raise ConfigError(f"price is {self.price}; a pass with drafts costs at least 1, give that or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.costs = options, setup.costs()

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        count = len(batch)
        most, rows = self.options.price * self.costs.of(count), count
        while rows < count + room and self.costs.of(rows + 1) <= most:
            rows += 1
        each, rest = divmod(rows - count, max(count, 1))
        return [each + (i < rest) for i in range(count)]
