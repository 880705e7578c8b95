"""A chain that ends where its tokens have become unlikely together.

Does not: take the last token back: it was drawn, so only what would follow it may depend on how likely it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.look import Traits
from forerun.trees.contract import StoppingChain
from forerun.types import Facts, Setup


class ThresholdTree(StoppingChain):
    """By the probability of the path, as many engines have it."""

    facts = Facts(draws=True, evidence="docs/results/README.md#trees-chains")
    traits = False

    @dataclass(frozen=True)
    class Options:
        """`least`: the probability of all tokens together below which the chain ends."""

        least: float = 0.1

        def __post_init__(self) -> None:
            if not 0 <= self.least <= 1:
                raise ConfigError(f"tree 'threshold': least is {self.least}; give a probability from 0 to 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def stops(self, traits: Sequence[Traits], reach: float) -> bool:
        return reach < self.options.least
