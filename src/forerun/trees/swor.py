"""A constant number of children per level, drawn without replacement (RSD-C, 2402.14160).

Siblings are drawn as the Gumbel-top-k trick finds them, one after the other from what the elders left.
Does not: look at how likely anything is; `sbs` and `dyspec` spend the same nodes where they are likelier to be reached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.growth import Growth
from forerun.look import Look
from forerun.trees.contract import PlannedTree, Shape, branching
from forerun.types import Facts, Need, Setup


class SworTree(PlannedTree):
    """Distinct siblings."""

    facts = Facts(
        keys=("rsd-swor",),
        draws=True,
        paper="2402.14160",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-drawn",
    )

    @dataclass(frozen=True)
    class Options:
        """`widths`: children of every node, level by level; one each on levels below these."""

        widths: tuple[int, ...] = (2, 2, 1)

        def __post_init__(self) -> None:
            if not self.widths or min(self.widths) < 1:
                raise ConfigError(f"tree 'swor': widths is {self.widths}; give 1 or more children per level.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.levels = options, len(options.widths)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options((2, 1))

    def shape(self, budget: int, depth: int) -> Shape:
        return branching(self.options.widths, budget, depth)

    def look(self, growth: Growth, nodes: Sequence[int], count: int) -> Look:
        return growth.drawn(nodes, count)
