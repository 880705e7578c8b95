"""Big Little Decoder (2302.07863): the small model writes until it is unsure, the big one rolls back where it must.

Fallback: where the small model's likeliest token has less than `fallback`, the big model writes. Rollback: the text
returns to the first drafted x whose distance -log p(x) exceeds `rollback`, and the big model writes there. At
temperature 0 the distance is measured in p at temperature 1. A draft without probabilities counts as sure.
Does not: end the small model's draft where it falls back (its drafter's threshold does; the text is the same).
"""

from dataclasses import dataclass

import numpy as np

from forerun.errors import ConfigError
from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class BildVerifier(SoloVerifier):
    """Keep what the small model was sure of and the big one finds not absurd."""

    facts = Facts(keys=("bild",), paper="2302.07863", exact=False, evidence="docs/results/README.md#fidelity")

    @dataclass(frozen=True)
    class Options:
        """`fallback`: least probability of the small model's likeliest token; `rollback`: most nats of a token."""

        fallback: float = 0.6
        rollback: float = 5.0

        def __post_init__(self) -> None:
            if not 0 <= self.fallback <= 1:
                message = f"verifier 'bild': fallback is {self.fallback}"
                raise ConfigError(f"{message}; it is a probability, give a number from 0 to 1.")
            if not self.rollback >= 0:
                message = f"verifier 'bild': rollback is {self.rollback}"
                raise ConfigError(f"{message}; it is a distance in nats, give a number of at least 0.")

    def __init__(self, options: Options) -> None:
        self.options, self.least = options, float(np.exp(-options.rollback))

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            hit = next((child for child in draft.children(node) if self._stays(draft, child, target)), None)
            if hit is None:
                return Verdict(path, rng.categorical(target[node], Purpose.TARGET, len(path)))
            node, path = hit, (*path, hit)

    def _stays(self, draft: Draft, node: int, target: Target) -> bool:
        if _certainty(draft, node) < self.options.fallback:
            return False
        chance = target.soft(draft.parents[node]).prob(draft.tokens[node])
        return chance > 0 and chance >= self.least


def _certainty(draft: Draft, node: int) -> float:
    """Probability of the small model's likeliest token there."""
    q = draft.q[node] if draft.q is not None else None
    if q is not None:
        return float(q.probs.max())
    return draft.confidence[node] if draft.confidence is not None else 1.0
