"""Typical acceptance (2401.10774, section 2.3.1): a token may come that is likely enough where p is sharp.

A drafted x is accepted if p(x) > min(epsilon, delta exp(-H(p))), H the entropy of p in nats: the less p knows, the less
is asked for. Of all branches the longest accepted one wins, the likelier of two as long. The token after it is drawn
from p. At temperature 0 p is a point, so the text is plain greedy decoding's.
Does not: look at q; take the first token of a step greedily, as Medusa's heads do (it is drawn from p).
"""

from dataclasses import dataclass

import numpy as np

from forerun.errors import ConfigError
from forerun.rng import Purpose, Rng
from forerun.types import Dist, Draft, Facts, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class TypicalVerifier(SoloVerifier):
    """Accept what is not unlikely for the entropy of its place."""

    facts = Facts(paper="2401.10774", exact=False, evidence="docs/results/README.md#fidelity")

    @dataclass(frozen=True)
    class Options:
        """`epsilon`: a probability that always suffices; `delta`: the share of exp(-entropy) that does."""

        epsilon: float = 0.09
        delta: float = 0.3

        def __post_init__(self) -> None:
            if not 0 <= self.epsilon <= 1:
                message = f"verifier 'typical': epsilon is {self.epsilon}"
                raise ConfigError(f"{message}; it is a probability, give a number from 0 to 1.")
            if not self.delta >= 0:
                raise ConfigError(f"verifier 'typical': delta is {self.delta}; give a number of at least 0.")

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        found: dict[int, tuple[int, float]] = {-1: (0, 0.0)}  # accepted nodes -> depth, log-likelihood
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent in found:
                p = target[parent]
                chance = p.prob(token)
                if chance > self._least(p):
                    depth, likelihood = found[parent]
                    found[node] = depth + 1, likelihood + float(np.log(chance))
        last = max(found, key=lambda node: found[node])
        path: tuple[int, ...] = ()
        node = last
        while node >= 0:
            node, path = draft.parents[node], (node, *path)
        return Verdict(path, rng.categorical(target[last], Purpose.TARGET, len(path)))

    def _least(self, p: Dist) -> float:
        """The probability that a token must exceed."""
        mass = p.probs[p.probs > 0].astype(np.float64)
        return min(self.options.epsilon, self.options.delta * float(np.exp((mass * np.log(mass)).sum())))
