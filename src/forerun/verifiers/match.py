"""Draw from the target; keep walking while the drawn token happens to be a drafted child.

The token at a position is drawn from the target with the number that plain decoding uses there, so a sampled text is
not only distributed as plain decoding's: with the same seed it is the same text.
Does not: use q, so a sampled draft is accepted less often than by `rejection`.
"""

from dataclasses import dataclass

import numpy as np

from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Floats, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class MatchVerifier(SoloVerifier):
    """Accept exactly what the target itself would have said."""

    facts = Facts(paper="2305.09781, section 4.3 (naive sampling)", coupled=True)

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            token = rng.categorical(target[node], Purpose.TARGET, len(path))
            hit = next((child for child in draft.children(node) if draft.tokens[child] == token), None)
            if hit is None:
                return Verdict(path, token)
            node, path = hit, (*path, hit)

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        drafted = 1 - (1 - q.astype(np.float64)) ** count
        return float(p @ drafted)
