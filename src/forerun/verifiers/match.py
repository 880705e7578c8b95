"""Draw from the target; keep walking while the drawn token happens to be a drafted child.

The token at a position is drawn from the target with the number that plain decoding uses there, so with the same seed
a sampled text is plain decoding's own, whatever is drafted, by whom, and under which load. Drafts are drawn with the
same numbers (2408.07978), which makes a drawn token match nearly as often as `rejection` accepts it, and of four
siblings and more one of them oftener.
Does not: use q.
"""

from dataclasses import dataclass

import numpy as np

from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Floats, Target, Verdict
from forerun.verifiers.contract import SoloVerifier


class MatchVerifier(SoloVerifier):
    """Accept exactly what the target itself would have said."""

    facts = Facts(paper="2408.07978", coupled=True, evidence="docs/results/README.md#acceptance")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        token = rng.categorical(target[node], Purpose.TARGET, 0)
        for child, (drafted, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):  # parents come first
            if parent == node and drafted == token:
                node, path = child, (*path, child)
                token = rng.categorical(target[node], Purpose.TARGET, len(path))
        return Verdict(path, token)

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        """Sum over x of 1 / sum_y max(p(y) / p(x), q(y) / q(x)) (2408.07978); i.i.d. siblings are all the same token.

        The maximum is p(y) / p(x) where p(y) / q(y) is not below p(x) / q(x), so sorted by this ratio sums run along.
        """
        both = (p > 0) & (q > 0)
        x, y = p[both].astype(np.float64), q[both].astype(np.float64)
        order = np.argsort(-x / y, kind="stable")
        x, y = x[order], y[order]
        above = np.cumsum(x) + p[~both].sum(dtype=np.float64)
        below = np.cumsum(y[::-1])[::-1] - y + q[~both].sum(dtype=np.float64)
        return float((1 / (above / x + below / y)).sum())
