"""The tree with the largest expected number of accepted tokens, as the drafter sees it (OPT-Tree, 2406.17276).

A node's path probability is what the drafter expects of it, and these add up to the expected length. Every level is
looked behind in those of its nodes that stand in the best draft so far; where a level adds less than `gain` to the
expectation, growth ends. Nodes below the growth's bar are left out. Chosen, not drawn.
Does not: know what a level costs; `gain` is to be that, in target passes.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth, Looks, Pool
from forerun.trees.contract import Tree
from forerun.types import Best, Facts, Need, Setup


class OptTree(Tree):
    """Level by level, as long as it pays."""

    facts = Facts(
        keys=("opt-tree",),
        paper="2406.17276",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-greedy",
    )

    @dataclass(frozen=True)
    class Options:
        """`nodes`: at most, 0: any; `gain`: the least number of expected tokens for which one more level is grown."""

        nodes: int = 0
        gain: float = 0.1

        def __post_init__(self) -> None:
            if self.nodes < 0 or not self.gain >= 0:
                given = f"{self.nodes} nodes and a gain of {self.gain}"
                raise ConfigError(f"tree 'opt-tree' has {given}; give 0 or more of both.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def best(self, budget: int, depth: int) -> Best:
        return Best(min(budget, self.options.nodes or budget), depth, self.options.gain)

    def grow(self, growth: Growth) -> Looks:
        nodes, behind, expected = self.best(growth.budget, growth.depth).nodes, [ROOT], 0.0
        with Pool(growth, nodes) as pool:
            for _ in range(growth.depth):
                look = pool.look(behind, nodes)
                yield look
                fresh, before, best = pool.add(behind, look), expected, pool.best()
                expected = sum(pool.reach[best].tolist())
                behind = pool.promising(candidate for candidate in best if candidate >= fresh)
                if not behind or expected - before < self.options.gain:
                    return
