"""A chain that ends once a rejection has become likely (SpecDec++, 2405.19715).

The best rule for when to verify is a threshold on the probability that at least one token so far is rejected (theorem
3.1). A token's acceptance is predicted by a residual network on the hidden state of the drafter that the token is drawn
from, a file of `forerun train stopping`; without one, by a logistic function, fitted to accepted and rejected tokens,
of the log-odds of the drafter's largest probability and of its entropy.
Does not: look at the token itself, as the paper's head does, which reads the state behind it: that takes one more pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, prod

import numpy as np

from forerun.errors import ConfigError
from forerun.heads import Network, network
from forerun.look import Traits
from forerun.trees.contract import StoppingChain, measured, numbers
from forerun.types import Facts, Setup

# The bundled pair: `forerun bench trees --prompts 6 --temperature 1 --save FILE`
BUNDLED = (0.8842, 0.3048, -0.2108)
_EDGE = 1e-4  # probabilities nearer to 0 or 1 tell no more


def features(traits: Traits) -> tuple[float, ...]:
    """What a token's acceptance is predicted from; the first is constant."""
    top = min(max(traits.tops[0], _EDGE), 1 - _EDGE)
    return 1.0, log(top / (1 - top)), traits.entropy


class SpecDecPPTree(StoppingChain):
    """A threshold on the predicted rejection."""

    facts = Facts(keys=("specdec-pp",), draws=True, paper="2405.19715", evidence="docs/results/README.md#trees-chains")

    @dataclass(frozen=True)
    class Options:
        """`risk`: the probability of a rejection at which the chain ends; `file`: fitted weights, "": the bundled.

        `head`: a network of `forerun train stopping`, in place of these weights; "": none.
        """

        risk: float = 0.7
        file: str = ""
        head: str = ""

        def __post_init__(self) -> None:
            if not 0 <= self.risk <= 1:
                raise ConfigError(f"tree 'specdec-pp': risk is {self.risk}; give a probability from 0 to 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.head: Network | None = None
        self.weights = measured(options.file, "specdec-pp", numbers(len(BUNDLED))) if options.file else BUNDLED
        if options.head:
            self.head = network(options.head, "specdec-pp", "tree 'specdec-pp'", "forerun train stopping")
            self.hidden, self.state_size = (self.head.layer,), self.head.reads

    def stops(self, traits: Sequence[Traits], reach: float) -> bool:
        if self.head is not None:
            kept = float(np.prod(self.head(np.array([one.state for one in traits]))))
        else:
            kept = prod(self.acceptance(one) for one in traits)
        return 1 - kept > self.options.risk

    def acceptance(self, traits: Traits) -> float:
        """The predicted probability that a token drawn from such a distribution is accepted."""
        score = sum(weight * feature for weight, feature in zip(self.weights, features(traits), strict=True))
        return 1 / (1 + exp(-score))
