"""k-sequential selection among i.i.d. drafts (SpecTr, 2310.15141, alg. 3).

x drawn from q is accepted with probability min(1, p(x) / (rho q(x))), siblings in turn; rho, between 1 and their number
k, is the smallest that leaves nothing negative: 1 - (1 - beta)^k = rho beta, with beta the chance of each.
Does not: judge anything but siblings drawn i.i.d. by this rule; others are judged one after the other, as by
`rejection`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from forerun.types import Dist, Facts, Floats
from forerun.verifiers.contract import Judged, Siblings, SiblingVerifier
from forerun.verifiers.rejection import in_turn


class SpecTrVerifier(SiblingVerifier):
    """One threshold for all drafts of a token, which therefore need not be refused in turn."""

    facts = Facts(keys=("spectr",), paper="2310.15141", evidence="docs/results/README.md#acceptance")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def judge(self, p: Dist, siblings: Siblings) -> Judged:
        q = siblings.shared
        if q is None or p.ids is not None:
            return in_turn(p, siblings)
        dense = q.over(p)
        rho = threshold(p.probs, dense, len(siblings.nodes))
        for node in siblings.nodes:
            x = siblings.draft.tokens[node]
            if siblings.accepts(node, p.prob(x) / (rho * q.prob(x))):
                return node, p
        return None, p.minus(Dist(taken(p.probs, dense, len(siblings.nodes), rho)))

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        return float(taken(p, q, count, threshold(p, q, count)).sum(dtype=np.float64))


def threshold(p: Floats, q: Floats, count: int) -> float:
    """The smallest rho, as far as rounding lets it be told."""
    room = np.empty_like(p)

    def spare(rho: float) -> float:
        chance = total(np.minimum(q, np.multiply(p, p.dtype.type(1 / rho), out=room), out=room))
        return rho * chance - some(chance, count)

    return crossing(spare, 1.0, float(count), nearly(p))


def taken(p: Floats, q: Floats, count: int, rho: float) -> Floats:
    """What accepted drafts give to every token: less than p, and together their chance to be accepted."""
    kept = np.minimum(q, p * p.dtype.type(1 / rho))
    chance = float(kept.sum(dtype=np.float64))
    kept *= kept.dtype.type(some(chance, count) / chance if chance > 0 else 0)
    return kept


def total(part: Floats) -> float:
    """The sum, quickly: in vectors, which are added up in pairs."""
    return float(torch.from_numpy(part).sum())


def some(chance: float, count: int) -> float:
    """Probability that at least one of `count` independent events of this chance happens."""
    found: float = 1 - (1 - min(chance, 1.0)) ** count
    return found


def crossing(spare: Callable[[float], float], low: float, high: float, near: float) -> float:
    """Where `spare` goes from negative to positive, from the side on which it is not negative (regula falsi)."""
    below, above = spare(low), spare(high)
    if below >= 0 or above <= 0:
        return low if below >= 0 else high
    lag = 0
    while high - low > near * high:
        at = high - above * (high - low) / (above - below)
        at = min(max(at, low + near * high / 2), high - near * high / 2)
        found = spare(at)
        if found >= 0:
            high, above, lag = at, found, max(lag, 0) + 1
            below /= 2 if lag > 1 else 1  # an end that stays would slow it down (Illinois)
        else:
            low, below, lag = at, found, min(lag, 0) - 1
            above /= 2 if lag < -1 else 1
    return high


def nearly(p: Floats) -> float:
    """How close a crossing has to be found, as a share: beyond that, p itself is rounded."""
    return float(np.finfo(p.dtype).eps ** 0.75)
