"""The most that any exact rule can accept, whatever it costs to reach (2502.18779).

Refusal has probability max over sets A of tokens of p(A) - P(a draft lies in A); for each way to draw there is a best
set among the beginnings of the tokens in order of p / q, so all are tried.
Does not: know the optimum of a tree.
"""

from collections.abc import Callable

import numpy as np

from forerun.types import Floats

_NODES = 64  # of the quadrature


def with_replacement(p: Floats, q: Floats, count: int) -> float:
    """All drawn from q."""
    return _best(p, q, lambda ordered: 1 - (1 - np.minimum(np.cumsum(ordered), 1)) ** count)


def without_replacement(p: Floats, q: Floats, count: int) -> float:
    """Drawn one after the other, q renormalised without the earlier ones.

    These are the first tokens of a race in which x arrives at a rate of q(x). All lie outside A if `count` others
    arrive before the first of A, so with e_j the elementary symmetric polynomials of exp(q(x) t) - 1 over those
    others, that has the probability 1 - q(A) * integral of exp(-t) (e_0 + ... + e_(count - 1)) dt.
    """

    def reached(ordered: Floats) -> Floats:
        others = ordered[::-1]  # A is a beginning, so what it lacks is an end
        times, weights = np.polynomial.laguerre.laggauss(_NODES)
        grown = np.zeros(len(q) + 1)
        for time, weight in zip(times, weights, strict=True):
            odds, polynomial = np.expm1(others * time), np.ones(len(q) + 1)
            grown += weight
            for _ in range(1, count):
                polynomial = np.concatenate(([0.0], np.cumsum(odds * polynomial[:-1])))
                grown += weight * polynomial
        behind = np.concatenate(([0.0], np.cumsum(others)))
        return ((1 - behind) * grown)[-2::-1]

    return _best(p, q, reached)


def greedy(p: Floats, q: Floats, count: int) -> float:
    """The likeliest tokens of q, all but the last; that one is drawn from the rest."""
    chosen = np.argsort(-q, kind="stable")[: count - 1]
    rest = q.astype(np.float64)
    rest[chosen] = 0
    return float(p[chosen].sum() + np.minimum(p, rest / rest.sum()).sum())


def _best(p: Floats, q: Floats, reached: Callable[[Floats], Floats]) -> float:
    """`reached`: q in order of p / q -> the chance of a draft in its first, first two, ... tokens."""
    p, q = p.astype(np.float64), q.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.fmax(p / q, 0), kind="stable")
    excess = np.cumsum(p[order]) / p.sum() - reached(q[order] / q.sum())
    return float(1 - max(0.0, excess.max()))
