"""A chain that ends where the drafter is in doubt: by the entropy of its distribution (SVIP, 2411.18462).

A token is accepted with at least 1 - sqrt(D / 2), D being the divergence of q from p (Pinsker); D is taken to be in
proportion to the entropy H of q, which the drafter knows, so the chain ends where sqrt(H) exceeds `bound`.
Does not: learn the proportion; `bound` holds for a pair of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from forerun.errors import ConfigError
from forerun.look import Traits
from forerun.trees.contract import StoppingChain
from forerun.types import Facts, Setup


class SvipTree(StoppingChain):
    """Self-verification by entropy."""

    facts = Facts(keys=("svip",), draws=True, paper="2411.18462", evidence="docs/results/README.md#trees-chains")

    @dataclass(frozen=True)
    class Options:
        """`bound`: the square root of the entropy in nats beyond which the chain ends."""

        bound: float = 1.8

        def __post_init__(self) -> None:
            if not self.bound >= 0:
                raise ConfigError(f"tree 'svip': bound is {self.bound}; give the root of an entropy, 0 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def stops(self, traits: Sequence[Traits], reach: float) -> bool:
        return sqrt(traits[-1].entropy) > self.options.bound
