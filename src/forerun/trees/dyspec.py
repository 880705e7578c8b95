"""Whatever node is likeliest to be judged comes next, drawn from the drafter's distribution (DySpec, 2410.11744).

A place in the tree is worth the probability that judging gets there: all tokens above accepted, all elder siblings
refused, as the drafter's distribution has it. The place that is worth most is drawn; that opens one below the new node
and one beside it. A pass looks behind all nodes that the remaining budget may still reach, so the tree is the greedy
one and a pass serves many nodes.
Does not: take account of what judging finds; a drawn token's worth decides what grows below and beside it, not whether
it stays.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth
from forerun.look import Look
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup

Open = tuple[float, int, int, float]  # minus its worth, the node above, which child, the worth of the node above


class DySpecTree(Tree):
    """Greedy, in the order of worth."""

    facts = Facts(keys=("dyspec",), draws=True, paper="2410.11744", needs=frozenset({Need.BRANCHING}))
    levels = 8

    @dataclass(frozen=True)
    class Options:
        """`width`: the most children of a node; `nodes`: at most, 0: any."""

        width: int = 4
        nodes: int = 0

        def __post_init__(self) -> None:
            if self.width < 1 or self.nodes < 0:
                given = f"width {self.width} and nodes {self.nodes}"
                raise ConfigError(f"tree 'dyspec' has {given}; give a width of 1 or more, and 0 or more nodes.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Iterator[Look]:
        nodes = min(growth.budget, self.options.nodes or growth.budget)
        places: list[Open] = [(-1.0, ROOT, 0, 1.0)]
        depths, looks = {ROOT: 0}, dict[int, tuple[Look, int]]()
        while places and len(growth) < nodes:
            if places[0][1] not in looks:
                likely = nsmallest(nodes - len(growth), places)
                unseen = sorted({parent for _, parent, _, _ in likely if parent not in looks})
                look = growth.drawn(unseen, self.options.width)
                yield look
                looks.update({node: (look, row) for row, node in enumerate(unseen)})
            minus, parent, which, above = heappop(places)
            child = looks[parent][0].child(looks[parent][1], which)
            if child is None:
                continue
            node = growth.plant(parent, child)
            depths[node] = depths[parent] + 1
            if depths[node] < growth.depth:
                heappush(places, (-above * child.chance, node, 0, above * child.chance))
            if which + 1 < self.options.width:
                heappush(places, (minus + above * child.chance, parent, which + 1, above))
