"""A chain that a small classifier ends (DISCO, 2405.04304).

After every token a classifier, fitted to accepted and rejected tokens, says from the largest probabilities of the
drafter's distribution, its entropy and the token's place in the chain whether the token will be accepted; where that
falls below `least`, the chain ends. It is a logistic function, or with `head`, a file of `forerun train stopping`, a
network with a hidden layer, as in the paper.
Does not: learn while it runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from forerun.errors import ConfigError
from forerun.heads import Network, network
from forerun.look import Traits
from forerun.trees.contract import StoppingChain, measured, numbers
from forerun.types import Facts, Setup

# The bundled pair: `forerun bench trees --prompts 6 --temperature 1 --save FILE`
BUNDLED = (0.9777, 0.8167, -1.0134, -0.5001, -0.2883, -0.3627, 0.108)


def features(traits: Traits, place: int) -> tuple[float, ...]:
    """What the classifier sees of a token, the first of a chain at place 1; the first is constant."""
    return 1.0, *traits.tops, traits.entropy, log(place)


class DiscoTree(StoppingChain):
    """A classifier decides."""

    facts = Facts(keys=("disco",), draws=True, paper="2405.04304", evidence="docs/results/README.md#trees-chains")

    @dataclass(frozen=True)
    class Options:
        """`least`: the predicted acceptance below which the chain ends; `file`: fitted weights, "": the bundled.

        `head`: a network of `forerun train stopping`, in place of these weights; "": none.
        """

        least: float = 0.4
        file: str = ""
        head: str = ""

        def __post_init__(self) -> None:
            if not 0 <= self.least <= 1:
                raise ConfigError(f"tree 'disco': least is {self.least}; give a probability from 0 to 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.head: Network | None = None
        self.weights = measured(options.file, "disco", numbers(len(BUNDLED))) if options.file else BUNDLED
        if options.head:
            self.head = network(options.head, "disco", "tree 'disco'", "forerun train stopping")
            if self.head.reads != len(BUNDLED) - 1:
                given = f"the head {options.head!r} reads {self.head.reads} numbers, not {len(BUNDLED) - 1}"
                raise ConfigError(f"tree 'disco': {given}; train one with `forerun train stopping`.")

    def stops(self, traits: Sequence[Traits], reach: float) -> bool:
        return self.acceptance(features(traits[-1], len(traits))) < self.options.least

    def acceptance(self, found: Sequence[float]) -> float:
        """The predicted probability that a token of such features is accepted."""
        if self.head is not None:
            return float(self.head(np.array([found[1:]]))[0])
        score = sum(weight * feature for weight, feature in zip(self.weights, found, strict=True))
        return 1 / (1 + exp(-score))
