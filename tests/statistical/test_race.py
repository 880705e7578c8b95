"""Draws as races: the law, the coupling, and the same bits wherever they are run."""

import numpy as np
import pytest
import torch

from forerun.kernels import native
from forerun.kernels.race import first, times, winner, words
from forerun.rng import CounterRng, Purpose
from forerun.types import Dist

KEYS = [int(key) for key in np.random.default_rng(0).integers(1 << 64, size=4000, dtype=np.uint64)]
P = np.array([0.1, 0.0, 0.4, 0.2, 0.3], np.float32)
Q = np.array([0.3, 0.1, 0.3, 0.0, 0.3], np.float32)


@pytest.mark.skipif(native.load() is None, reason="the kernels were not compiled")
@pytest.mark.parametrize("vocab", [1, 5, 255, 256, 257, 4096, 33_001])
def test_the_compiled_race_has_the_bits_of_the_reference(vocab):
    rng = np.random.default_rng(vocab)
    for key in KEYS[:40]:
        p = rng.dirichlet(np.full(vocab, 0.3)).astype(np.float32)
        assert native.load().race(p, *words(key)) == first(torch.from_numpy(p)[None], [key])
        even = np.ones(vocab, np.float32)  # the least time wins: its bits decide
        assert native.load().race(even, *words(key)) == times([key], torch.arange(vocab)).argmin()


def test_times_are_exponential(fit):
    """64 cells of equal mass, and 16 x 16 of neighbouring tokens and of neighbouring keys."""
    found = times(KEYS, torch.arange(500)).double().numpy()
    shares = -np.expm1(-found)
    assert fit(np.bincount((shares.ravel() * 64).astype(int), minlength=64), np.full(64, 1 / 64)).good
    cells = (shares * 16).astype(int)
    for one, other in ((cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:])):
        counts = np.zeros((16, 16))
        np.add.at(counts, (one.ravel(), other.ravel()), 1)
        assert fit(counts.ravel(), np.full(256, 1 / 256)).good
    least = found.min(1) * 500  # of 500, exponential as well
    assert fit(np.bincount((-np.expm1(-least) * 16).astype(int), minlength=16), np.full(16, 1 / 16)).good


def test_the_winner_follows_p(fit):
    found = [winner(Dist(P), key) for key in KEYS]
    assert fit(np.bincount(found, minlength=5), P).good
    ids = np.array([7, 3, 9])
    listed = [winner(Dist(P[2:], ids), key) for key in KEYS[:500]]
    assert fit(np.bincount(listed, minlength=10)[ids], P[2:] / P[2:].sum()).good


def test_races_of_one_key_are_coupled(fit):
    """They agree as often as 2408.07978 says, and not as often as independent draws would."""
    both = [(winner(Dist(P), key), winner(Dist(Q), key)) for key in KEYS]
    with np.errstate(divide="ignore"):
        agree = sum(1 / np.maximum(P / P[x], Q / Q[x]).sum() for x in range(5) if P[x] * Q[x] > 0)
    same = sum(p == q for p, q in both)
    assert fit(np.array([same, len(both) - same]), np.array([agree, 1 - agree])).good
    assert not fit(np.array([same, len(both) - same]), np.array([P @ Q, 1 - P @ Q])).good


def test_who_arrives_next_is_drawn_without_replacement(fit):
    counts = np.zeros((5, 5))
    for key in KEYS:
        elder = winner(Dist(P), key)
        rest = P.copy()
        rest[elder] = 0
        counts[elder, winner(Dist(rest / rest.sum()), key)] += 1
    law = P[:, None] * P[None, :] / (1 - P[:, None]) * (1 - np.eye(5))
    assert fit(counts.ravel(), law.ravel()).good


def test_drafts_of_a_coupled_verifier_are_drawn_with_the_numbers_of_the_target():
    apart, coupled = CounterRng(1), CounterRng(1, coupled=True)
    for step in range(3):
        for rng in (apart, coupled):
            rng.begin(step, 5)
        target = coupled.ahead(Purpose.TARGET, 2)
        assert coupled.ahead(Purpose.DRAFT, 2, 7) == target == apart.ahead(Purpose.TARGET, 2)
        assert apart.ahead(Purpose.DRAFT, 2, 7) != target
        assert coupled.ahead(Purpose.ACCEPT, 2) != target
