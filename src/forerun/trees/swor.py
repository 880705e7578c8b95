"""A constant number of children per level, drawn without replacement (RSD-C, 2402.14160).

Siblings are drawn as the Gumbel-top-k trick finds them, one after the other from what the elders left.
Does not: look at how likely anything is; `sbs` and `dyspec` spend the same nodes where they are likelier to be reached.
"""

from collections.abc import Sequence

from forerun.growth import Growth
from forerun.look import Look
from forerun.trees.contract import LevelledTree
from forerun.types import Facts, Need


class SworTree(LevelledTree):
    """Distinct siblings."""

    facts = Facts(
        keys=("rsd-swor",),
        draws=True,
        paper="2402.14160",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-drawn",
    )

    def look(self, growth: Growth, nodes: Sequence[int], count: int) -> Look:
        return growth.drawn(nodes, count)
