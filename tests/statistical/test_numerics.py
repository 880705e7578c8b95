"""L1b and L1c: what counting cannot see. Residuals against float64, thin tails, vocabularies of real size."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from forerun.kernels.race import times, winner
from forerun.rng import CounterRng, Purpose
from forerun.testing import ExhaustiveRng
from forerun.testing.mutants import MUTANTS, Refused
from forerun.types import Dist, Draft
from forerun.verifiers.rejection import RejectionVerifier

EXAMPLES = settings.default.max_examples  # 100; more with --hypothesis-profile thorough
QUANTUM = 2.0**-149  # the least float32; below the normal numbers it is the error that rounding leaves
BOUND = 1e-5
KINDS = ("dense", "equal", "disjoint", "holes", "one-hot p", "one-hot q", "denormal", "nearly equal", "peaked")
HALF = MUTANTS["a residual in half precision"].rest


def pair(rng, kind, vocab):
    """Two distributions [vocab] in float32."""
    p, q = (rng.dirichlet(np.ones(vocab)) if vocab <= 8 else rng.standard_gamma(0.3, vocab) for _ in range(2))
    odd, hot = np.arange(vocab) % 2 == 1, np.eye(1, vocab, int(rng.integers(vocab)))[0]
    p, q = {
        "equal": (p, p),
        "disjoint": (np.where(odd, p, 0), np.where(odd, 0, q)),
        "holes": (p, np.where(rng.random(vocab) < 0.5, q, 0)),
        "one-hot p": (hot, q),
        "one-hot q": (p, hot),
        "denormal": (p ** rng.uniform(20, 60), q ** rng.uniform(20, 60)),
        "nearly equal": (p, p * (1 + 1e-6 * rng.standard_normal(vocab))),
        "peaked": (np.exp(30 * p / p.max()), np.exp(30 * q / q.max())),
    }.get(kind, (p, q))
    return tuple((x / max(x.sum(), 1e-300)).astype(np.float32) for x in (p, q))


def wanted(p, q):
    """The residual in float64; p where nothing is left."""
    rest = np.maximum(p.astype(np.float64) - q.astype(np.float64), 0)
    return rest / rest.sum() if rest.sum() > 0 else p.astype(np.float64)


def error(got, p, q):
    """The largest relative error, beyond half a quantum where the truth is not a normal number."""
    truth = wanted(p, q)
    return float(np.max((np.abs(got.astype(np.float64) - truth) - QUANTUM) / np.maximum(truth, QUANTUM), initial=0))


SIZES = {2: 4500, 8: 5220, 32_000: 252, 152_000: 36}  # 10,008 pairs


@pytest.mark.parametrize("vocab", SIZES)
def test_residuals_are_those_of_float64(vocab):
    for i in range(SIZES[vocab]):
        p, q = pair(np.random.default_rng([vocab, i]), KINDS[i % len(KINDS)], vocab)
        got = Dist(p).minus(Dist(q))
        assert got.probs.dtype == np.float32
        assert error(got.probs, p, q) <= BOUND, (KINDS[i % len(KINDS)], i)
        assert got.probs.min() >= 0


@pytest.mark.parametrize("vocab", [8, 32_000])
def test_half_precision_is_seen(vocab):
    worst = 0.0
    for i in range(20):
        p, q = pair(np.random.default_rng([vocab, i]), "dense", vocab)
        got = HALF(Refused(Dist(p), Dist(q), 0, Draft((0,), (-1,)), None))
        worst = max(worst, error(got.probs, p, q))
    assert worst > 10 * BOUND


FLOATS = arrays.arrays(np.float32, st.integers(2, 8), elements=st.floats(0, 1, width=32))


@settings(max_examples=5 * EXAMPLES)
@given(FLOATS, st.integers(0, 2**32 - 1))
@example(np.array([1, 1e-42, 3e-43], np.float32), 0)
def test_residuals_of_any_floats(p, seed):
    """Whatever the rows hold, sums that are not quite one included."""
    q = np.random.default_rng(seed).permutation(p)
    if p.sum() > 0:
        p, q = p / p.sum(dtype=np.float32), q / q.sum(dtype=np.float32)
        assert error(Dist(p).minus(Dist(q)).probs, p, q) <= BOUND


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_rows_leave_the_same_residual(kind):
    rng = np.random.default_rng(7)
    for _ in range(50):
        p, q = pair(rng, kind, 8)
        dense = Dist(p).minus(Dist(q))
        ids = rng.permutation(8)
        assert np.array_equal(Dist(p).minus(Dist(q[ids], ids)).probs, dense.probs)
        sparse = Dist(p[ids], ids).minus(Dist(q))
        assert sparse.ids is not None
        assert np.allclose(sparse.probs[np.argsort(ids)], dense.probs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [2, 8, 32_000])
def test_equal_distributions_accept_everything(vocab, kind):
    """p = q: no number can refuse a token that q could have drawn."""
    for i in range(20):
        q, _ = pair(np.random.default_rng([vocab, i, 1]), kind, vocab)
        token = int(np.flatnonzero(q)[i % np.count_nonzero(q)])
        rng = ExhaustiveRng()
        verdict = RejectionVerifier(RejectionVerifier.Options()).verify(
            [Draft((token,), (-1,), (Dist(q),))], [{-1: Dist(q), 0: Dist.point(1)}], [rng]
        )[0]
        assert (verdict.path, verdict.token, rng.weight) == ((0,), 1, 1.0)


def test_nothing_left_falls_back_to_p():
    p = Dist(np.array([0.25, 0.75, 0.0], np.float32))
    above = Dist(np.array([0.25, 0.7500001, 0.0], np.float32))
    assert p.minus(p) is p
    assert p.minus(above) is p
    assert Dist.point(2).minus(Dist.point(2)).prob(2) == 1


def test_a_token_that_the_target_forbids_is_refused_and_never_drawn():
    p, q = np.array([0.0, 1.0, 0.0], np.float32), np.array([1.0, 0.0, 0.0], np.float32)
    draft = Draft((0,), (-1,), (Dist(q),))
    for seed in range(100):
        verdict = RejectionVerifier(RejectionVerifier.Options()).verify([draft], [{-1: Dist(p)}], [CounterRng(seed)])[0]
        assert (verdict.path, verdict.token) == ((), 1)


@pytest.mark.parametrize("probs", [[0, 0, 1, 0, 0], [0, 0.5, 0, 0.5, 0], [0, 1, 1e-45, 0], [0, 0.1, 0, 0.9]])
def test_a_token_of_no_mass_is_never_drawn(probs):
    p = Dist(np.array(probs, np.float32))
    assert all(p.probs[winner(p, key)] > 0 for key in range(0, 1 << 64, 1 << 54))


TAIL, GAP, DRAWS = 20_000, 16.0, 20_000


@pytest.fixture(scope="module")
def tail():
    """One likely token, and many that are each e^-16 times as likely; float32, as softmax gives it."""
    p = np.full(TAIL + 1, np.exp(-GAP), np.float64)
    p[0] = 1
    return Dist((p / p.sum()).astype(np.float32))


def test_a_thin_tail_is_drawn_as_often_as_it_should(tail):
    """44.8 of 20,000 draws of one request each; 17 to 83 are within 1e-6."""
    drawn = [CounterRng(seed).categorical(tail, Purpose.TARGET, 0) for seed in range(DRAWS)]
    assert 17 <= np.count_nonzero(drawn) <= 83


def test_a_thin_tail_is_lost_in_coarse_times(tail):
    """The same race with times of 20 bits, rounded to the nearest, draws too much of the tail."""
    p, drawn = torch.from_numpy(tail.probs), 0
    for seed in range(100):
        exact = times([CounterRng(seed).ahead(Purpose.TARGET, 0)], torch.arange(TAIL + 1))[0]
        drawn += int((p / ((exact * 2**20).round() / 2**20)).argmax()) > 0
    assert not 17 <= drawn * DRAWS / 100 <= 83


CELLS, N = 64, 200_000


def by_ratio(p, q):
    """A cell per token: 64 groups of about equal mass under p, by p / q, where errors of the residual gather."""
    order = np.argsort(p / np.maximum(q, 1e-30), kind="stable")
    cell = np.empty(len(p), np.int64)
    cell[order] = np.minimum(np.cumsum(p[order].astype(np.float64)) * CELLS, CELLS - 1).astype(np.int64)
    return cell


def one_token(p, q, rest, rng):
    """N tokens by one draft each: drawn from q, accepted with p / q, else from the residual by the production draw."""

    def draws(probs, n):
        mass = np.cumsum(probs, dtype=np.float64)
        return np.searchsorted(mass, rng.random(n) * mass[-1], side="right")

    x = draws(q, N)
    refused = rng.random(N) >= p[x].astype(np.float64) / q[x]
    x[refused] = draws(rest, int(refused.sum()))
    return x


@pytest.mark.parametrize("vocab", [32_000, 152_000])
def test_large_vocabularies_follow_the_law(vocab, fit):
    """`Dist.minus` makes the residual once; the draws are by a cumulative sum, because races take longer."""
    rng = np.random.default_rng(vocab)
    logits = 1.5 * rng.standard_normal(vocab)
    p, q = (np.exp(z - z.max()) for z in (logits, logits + 0.5 * rng.standard_normal(vocab)))
    p, q = (p / p.sum()).astype(np.float32), (q / q.sum()).astype(np.float32)
    cell = by_ratio(p, q)
    law = np.bincount(cell, weights=p.astype(np.float64), minlength=CELLS)

    def found(rest):
        counts = np.bincount(cell[one_token(p, q, rest, np.random.default_rng(1))], minlength=CELLS)
        return fit(counts, law / law.sum())

    right = found(Dist(p).minus(Dist(q)).probs)
    assert right.good, right
    assert right.freedom > 55
    assert not found(p).good  # redrawn from p
