"""A constant number of children per level, each drawn anew from the same distribution (2401.06706, 2305.09781).

Does not: avoid drawing a token twice: a second one is judged, as it must be, and never accepted; `swor` avoids it.
Under a coupled verifier, as `match`, siblings have one number and are all the same token: use `rejection`, or `swor`.
"""

from collections.abc import Sequence

from forerun.growth import Growth
from forerun.look import Look
from forerun.trees.contract import LevelledTree
from forerun.types import Facts, Need


class IidTree(LevelledTree):
    """Independent siblings."""

    facts = Facts(
        keys=("multi-candidate",),
        draws=True,
        paper="2401.06706",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-sampled",
    )

    def look(self, growth: Growth, nodes: Sequence[int], count: int) -> Look:
        return growth.drawn(nodes, count, again=True)
