"""Whatever place of the tree is likeliest to be judged is drawn next (DySpec, 2410.11744).

A place is worth the probability that judging gets there: all tokens above accepted, all elder siblings refused. The
place that is worth most is drawn; that opens one below the new node and one beside it. A drawn token is taken to be
accepted with probability floor + (1 - floor) q; the paper's floor is 0. A pass looks behind all nodes that the
remaining budget may still reach, so the tree is the greedy one and a pass serves many nodes.
Does not: draw for a greedy request, whose tokens are known and taken by the probability of their paths; drop a token
because it turned out unlikely: its worth decides what grows below and beside it.
"""

from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth, Looks, best_first
from forerun.look import Child, Look
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup

Place = tuple[float, int, int]  # minus its worth, the node above, which child of that


class DySpecTree(Tree):
    """Greedy, in the order of worth."""

    facts = Facts(
        keys=("dyspec",),
        draws=True,
        paper="2410.11744",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-greedy",
    )
    levels = 8

    @dataclass(frozen=True)
    class Options:
        """`width`: the most children of a node; `nodes`: at most, 0: any; `floor`: acceptance of the unlikeliest."""

        width: int = 4
        nodes: int = 0
        floor: float = 0.25

        def __post_init__(self) -> None:
            if self.width < 1 or self.nodes < 0 or not 0 <= self.floor <= 1:
                given = f"width {self.width}, {self.nodes} nodes and a floor of {self.floor}"
                raise ConfigError(f"tree 'dyspec' has {given}; give 1 or more, 0 or more, and a floor from 0 to 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Looks:
        nodes = min(growth.budget, self.options.nodes or growth.budget)
        if growth.greedy:
            yield from best_first(growth, nodes, self.options.width, nodes)
            return
        places: list[Place] = [(-1.0, ROOT, 0)]
        depths, looks = {ROOT: 0}, dict[int, tuple[Look, int]]()
        while places and len(growth) < nodes:
            if places[0][1] not in looks:
                reachable = nsmallest(nodes - len(growth), places)
                unseen = sorted({parent for _, parent, _ in reachable if parent not in looks})
                look = growth.drawn(unseen, self.options.width)
                yield look
                looks.update({node: (look, row) for row, node in enumerate(unseen)})
            minus, parent, which = heappop(places)
            look, row = looks[parent]
            child = look.child(row, which)
            if child is None:
                continue
            node, taken = growth.plant(parent, child), self._acceptance(child)
            depths[node] = depths[parent] + 1
            if depths[node] < growth.depth:
                heappush(places, (minus * taken, node, 0))
            if which + 1 < self.options.width:
                heappush(places, (minus * (1 - taken), parent, which + 1))

    def _acceptance(self, child: Child) -> float:
        """Of a drawn token whose elder siblings were refused."""
        q = child.q.prob(child.token) if child.q is not None else child.chance
        return self.options.floor + (1 - self.options.floor) * q
