"""The most probable continuations of all, best first, in passes of many nodes (SpecExec, 2406.02532).

A pass looks behind the `beams` likeliest nodes that were not looked behind yet, at whatever depth, as a search for
shortest paths would; the `nodes` likeliest become the draft. Meant for hundreds of nodes, where the target's pass is
slow and wide. Chosen, not drawn.
Does not: keep the target's distributions for a later step, when the text leaves the tree and comes back.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.growth import Growth, Looks, best_first
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup


class SpecExecTree(Tree):
    """Best first, a batch at a time."""

    facts = Facts(
        keys=("specexec",),
        paper="2406.02532",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-greedy",
    )
    levels = 8

    @dataclass(frozen=True)
    class Options:
        """`beams`: nodes looked behind per pass; `width`: tokens seen behind each; `nodes`: at most, 0: any."""

        beams: int = 16
        width: int = 8
        nodes: int = 0

        def __post_init__(self) -> None:
            if min(self.beams, self.width) < 1 or self.nodes < 0:
                given = f"{self.beams} beams, width {self.width} and {self.nodes} nodes"
                raise ConfigError(f"tree 'specexec' has {given}; give 1 or more beams and width, and 0 or more nodes.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Looks:
        nodes = min(growth.budget, self.options.nodes or growth.budget)
        return best_first(growth, nodes, self.options.width, self.options.beams)
