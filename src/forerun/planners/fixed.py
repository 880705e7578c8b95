"""The same budget for every request in every step.

Does not: look at load, acceptance or cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.planners.contract import Planner, within
from forerun.types import Context, Facts, Setup


class FixedPlanner(Planner):
    """`nodes` for everybody; in the order of the batch where the room does not suffice."""

    facts = Facts(solo=True)

    @dataclass(frozen=True)
    class Options:
        """`nodes`: the most that one request drafts in one step; `bar`: the least chance of a node and its path.

        The chance is what the drafter says; who says none, draws, or stands in another drafter leaves nothing out.
        """

        nodes: int = 8
        bar: float = 0.0

        def __post_init__(self) -> None:
            if self.nodes < 0:
                raise ConfigError(f"planner 'fixed': nodes is {self.nodes}; give 1 or more, or 0 for plain decoding.")
            if not 0 <= self.bar < 1:
                raise ConfigError(
                    f"planner 'fixed': bar is {self.bar}; give a chance below 1, or 0 to draft all nodes."
                )

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        setup.bar.chance = options.bar

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        return within([self.options.nodes] * len(batch), room)
