"""The most probable nodes of a tree that went on below the `width` likeliest of every level (EAGLE-2, 2406.16858).

Every level is looked behind in its likeliest nodes, and each of them gives `width` candidates; of the candidates of all
levels the likeliest by the probability of their path become the draft. Chosen, not drawn.
Does not: look behind a node below which none of the draft can be; the paper's drafter does, and gets the same draft.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth, Looks, Pool
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup


class Eagle2Tree(Tree):
    """Grow wide, then rank again."""

    facts = Facts(paper="2406.16858", needs=frozenset({Need.BRANCHING}), evidence="docs/results/README.md#trees-greedy")

    @dataclass(frozen=True)
    class Options:
        """`width`: nodes per level that are looked behind, and tokens seen behind each; `nodes`: at most, 0: any."""

        width: int = 4
        nodes: int = 0

        def __post_init__(self) -> None:
            if self.width < 1 or self.nodes < 0:
                given = f"width {self.width} and nodes {self.nodes}"
                raise ConfigError(f"tree 'eagle2' has {given}; give a width of 1 or more, and 0 or more nodes.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Looks:
        width, behind = self.options.width, [ROOT]
        with Pool(growth, min(growth.budget, self.options.nodes or growth.budget)) as pool:
            for _ in range(growth.depth):
                look = pool.look(behind, width)
                yield look
                behind = pool.promising(pool.best(pool.add(behind, look), width))
                if not behind:
                    return
