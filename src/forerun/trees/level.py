"""The likeliest continuations of every level by cumulative probability, level by level; chosen, not drawn.

The first half of EAGLE-2's drafts (2406.16858), whose second half picks among all levels: `eagle2`.
Does not: draw; go on below a path that is less likely than `threshold`.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.growth import Growth, Looks, beam
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup


class LevelTree(Tree):
    """`width` nodes per level."""

    facts = Facts(paper="2406.16858", needs=frozenset({Need.BRANCHING}), evidence="docs/results/README.md#trees-greedy")
    levels = 3

    @dataclass(frozen=True)
    class Options:
        """`threshold`: the least probability that a path has."""

        width: int = 2
        threshold: float = 0.0

        def __post_init__(self) -> None:
            if self.width < 1:
                raise ConfigError(f"tree 'level': width is {self.width}; give 1 or more nodes per level.")
            if not 0 <= self.threshold <= 1:
                raise ConfigError(f"tree 'level': threshold is {self.threshold}; give a probability from 0 to 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Looks:
        return beam(growth, self.options.width, self.options.threshold)
