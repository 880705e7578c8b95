"""The best tree for measured acceptance and the machine's costs, drawn without replacement (Sequoia, 2402.12374).

A dynamic programme over nodes, levels and ranks finds the shape with the most accepted tokens, where `accepted[k]` is
how often the k-th draw below an accepted node is the accepted one (sections 3.1 and 3.2). Of all sizes and depths
that the budget allows it takes the one with the most tokens per second: the target's pass costs what was measured of
its width, each level `price` of a pass without drafts.
Does not: look at the text; the shape is the same at every step. Draw uniformly once q is used up, as the paper does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth
from forerun.look import Look
from forerun.trees.contract import PlannedTree, Shape, measured, numbers
from forerun.types import Facts, Floats, Need, Setup

# The bundled pair: `forerun bench trees --prompts 6 --temperature 1 --save FILE`
BUNDLED = (0.4993, 0.1182, 0.0636, 0.0427, 0.0288, 0.0225, 0.0192, 0.0151)


class SequoiaTree(PlannedTree):
    """A planned shape of drawn tokens."""

    facts = Facts(
        keys=("sequoia",),
        draws=True,
        paper="2402.12374",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-sampled",
    )

    @dataclass(frozen=True)
    class Options:
        """`file`: measured acceptance, "": that of the bundled pair; `nodes`: at most, 0: any.

        `price`: of a level, in target passes without drafts; 0: every node is free, so the budget is used up.
        """

        file: str = ""
        nodes: int = 0
        price: float = 0.1

        def __post_init__(self) -> None:
            if self.nodes < 0 or not self.price >= 0:
                given = f"{self.nodes} nodes and a price of {self.price}"
                raise ConfigError(f"tree 'sequoia' has {given}; give 0 or more of both.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.accepted = measured(options.file, "sequoia", numbers(0)) if options.file else BUNDLED
        self.costs = setup.costs
        self.chosen: dict[tuple[int, int], Shape] = {}

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(price=0)

    def shape(self, budget: int, depth: int) -> Shape:
        nodes = min(budget, self.options.nodes or budget)
        if (nodes, depth) not in self.chosen:
            worth = values(self.accepted, nodes, depth)
            size = self._size(worth) if self.options.price else (nodes, depth)
            self.chosen[nodes, depth] = plan(self.accepted, *size)
        return self.chosen[nodes, depth]

    def _size(self, worth: Floats) -> tuple[int, int]:
        """Nodes and levels with the most tokens per second; none where drafting does not pay."""
        costs = self.costs()
        pass_seconds = np.array([costs.of(1 + nodes) for nodes in range(worth.shape[1])])
        level_seconds = self.options.price * pass_seconds[0] * np.arange(len(worth))
        speed = (1 + worth) / (pass_seconds + level_seconds[:, None])
        depth, nodes = np.unravel_index(speed.argmax(), speed.shape)
        return int(nodes), int(depth)

    def look(self, growth: Growth, nodes: Sequence[int], count: int) -> Look:
        return growth.drawn(nodes, count)


def values(accepted: Sequence[float], nodes: int, depth: int) -> Floats:
    """Expected accepted tokens of the best tree, [depth + 1, nodes + 1]."""
    return _forests(tuple(accepted), nodes, depth)[:, 0]


def plan(accepted: Sequence[float], nodes: int, depth: int) -> Shape:
    """A best tree of at most `nodes` nodes on at most `depth` levels."""
    forests = _forests(tuple(accepted), nodes, depth)
    parents, ranks = list[int](), list[int]()
    todo = [(ROOT, 0, nodes, depth)]  # a forest below a node: from which rank on, of how many nodes, on how many levels
    while todo:
        parent, rank, room, levels = todo.pop(0)
        if not room or not levels or rank == len(accepted):
            continue
        below = int(_splits(forests, accepted, levels, rank)[room].argmax())  # nodes below the next child
        parents.append(parent)
        ranks.append(rank)
        todo += [(parent, rank + 1, room - 1 - below, levels), (len(parents) - 1, 0, below, levels - 1)]
    return Shape(tuple(parents), tuple(ranks))


@lru_cache(maxsize=64)
def _forests(accepted: tuple[float, ...], nodes: int, depth: int) -> Floats:
    """The most that can be expected of a forest: [levels, the rank of its first tree, nodes]."""
    found = np.zeros((depth + 1, len(accepted) + 1, nodes + 1))
    for levels in range(1, depth + 1):
        for rank in reversed(range(len(accepted))):
            for room, split in enumerate(_splits(found, accepted, levels, rank)):
                found[levels, rank, room] = split.max() if room else 0.0
    return found


def _splits(forests: Floats, accepted: Sequence[float], levels: int, rank: int) -> list[Floats]:
    """Per room, what is expected where the first tree has 0, 1, ... nodes below its top, and the others the rest."""
    first = accepted[rank] * (1 + forests[levels - 1, 0])
    others = forests[levels, rank + 1]
    return [first[:room] + others[:room][::-1] for room in range(len(first))]
