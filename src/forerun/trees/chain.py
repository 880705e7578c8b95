"""One token after the other, drawn from the drafter's own distribution (2211.17192 alg. 1, 2302.01318 alg. 2).

Does not: branch, or stop early; `svip`, `disco`, `specdec-pp` and `threshold` do.
"""

from dataclasses import dataclass

from forerun.growth import ROOT, Growth, Looks
from forerun.trees.contract import Tree
from forerun.types import Facts, Setup


class ChainTree(Tree):
    """As deep as the drafter goes."""

    facts = Facts(draws=True, paper="2211.17192")
    levels = 4
    blind = True

    @dataclass(frozen=True)
    class Options:
        """No options; the drafter's `depth` says how long it is."""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Looks:
        node = ROOT
        for _ in range(min(growth.depth, growth.budget)):
            look = growth.drawn([node], 1)
            yield look
            child = look.child(0)
            if child is None:
                return
            node = growth.plant(node, child)
