"""Relaxed acceptance (TensorRT-LLM 2025, for thinking tokens of DeepSeek-R1): near the target's best is good enough.

The target says its token y as in plain decoding, with the number that plain decoding uses. A drafted x is accepted if
it is y; else if it is among the `top_k` likeliest and p(x) >= max p - `delta`. At temperature 0 y is the best token, p
is taken at temperature 1, and this is their rule.
Does not: tell thinking from answering; the tolerance holds for the whole text.
"""

from dataclasses import dataclass

import numpy as np

from forerun.errors import ConfigError
from forerun.rng import Purpose, Rng
from forerun.types import Dist, Draft, Facts, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class RelaxedVerifier(SoloVerifier):
    """Accept what the target says, or what is among its best and not far below the best."""

    facts = Facts(
        paper="TensorRT-LLM 2025, relaxed acceptance", exact=False, evidence="docs/results/README.md#fidelity"
    )

    @dataclass(frozen=True)
    class Options:
        """`top_k`: how many of the likeliest tokens are considered (0: none); `delta`: how far below the best."""

        top_k: int = 10
        delta: float = 0.6

        def __post_init__(self) -> None:
            if not self.top_k >= 0:
                message = f"verifier 'relaxed': top_k is {self.top_k}"
                raise ConfigError(f"{message}; give a number of tokens of at least 0.")
            if not 0 <= self.delta <= 1:
                message = f"verifier 'relaxed': delta is {self.delta}"
                raise ConfigError(f"{message}; it is a difference of probabilities, give a number from 0 to 1.")

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            token, children = rng.categorical(target[node], Purpose.TARGET, len(path)), draft.children(node)
            hit = next((child for child in children if draft.tokens[child] == token), None)
            if hit is None and children and self.options.top_k:
                p, least = target.soft(node), self._least(target.soft(node))
                hit = next((child for child in children if p.prob(draft.tokens[child]) >= least), None)
            if hit is None:
                return Verdict(path, token)
            node, path = hit, (*path, hit)

    def _least(self, p: Dist) -> float:
        """The probability that suffices; equals of the last of the `top_k` are among them."""
        k, mass = min(self.options.top_k, len(p.probs)), p.probs
        last = np.partition(mass, len(mass) - k)[len(mass) - k]
        return max(float(last), float(mass.max()) - self.options.delta, float(np.finfo(mass.dtype).tiny))
