"""The compiled cut-offs are those of the plain reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.cuts import chances, draw, plain
from forerun.kernels.race import first, winner
from forerun.types import Dist, Sampling

needs_compiler = pytest.mark.skipif(native.load() is None, reason="nothing was compiled")
ODD = 1e-3 / 7  # no sum of chances that are multiples of each other ends here
OPTIONS = {
    "top_k": st.sampled_from([1, 2, 5, 40, 5000]),
    "top_p": st.sampled_from([1e-9, 0.1 + ODD, 0.5 + ODD, 0.9 + ODD, 0.999 + ODD]),
    "min_p": st.sampled_from([0.01 + ODD, 0.3 + ODD, 1.0]),
    "typical_p": st.sampled_from([0.1 + ODD, 0.9 + ODD]),
    "epsilon_cutoff": st.sampled_from([1e-4 + ODD, 0.02 + ODD, 0.9]),
    "eta_cutoff": st.sampled_from([1e-4 + ODD, 0.02 + ODD]),
}


def rows_of(seed: int, rows: int, vocab: int, spread: float) -> torch.Tensor:
    """Rounded, so that many are equally likely; some are banned."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator).mul(spread).round()
    logits[torch.rand(rows, vocab, generator=generator) < 0.2] = -torch.inf
    logits[:, 0] = 0.0
    return logits


def close(logits: torch.Tensor, sampling: Sampling) -> None:
    found, right = chances(logits, sampling), plain(logits.double(), sampling)
    sure = (right == 0) | (right > 1e-30)  # between, a float may have no weight left
    assert ((found > 0) == (right > 0))[sure].all()
    assert torch.allclose(found.double(), right, rtol=1e-5, atol=1e-7)


@needs_compiler
@given(
    st.integers(0, 2**31),
    st.tuples(st.integers(1, 3), st.integers(1, 1500), st.sampled_from([0.5, 3.0, 9.0])),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.fixed_dictionaries({}, optional=OPTIONS),
)
def test_any_rows_behind_any_cuts(seed, shape, temperature, options):
    close(rows_of(seed, *shape), Sampling(temperature=temperature, **options))


@needs_compiler
@given(
    st.integers(0, 2**31),
    st.tuples(st.integers(1, 1500), st.sampled_from([0.5, 3.0, 9.0])),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20),
    st.fixed_dictionaries({}, optional=OPTIONS),
)
def test_a_draw_without_p_is_one_from_p(seed, shape, keys, options):
    vocab, spread = shape
    rows, sampling = rows_of(seed, 1, vocab, spread), Sampling(temperature=0.8, **options)
    p = chances(rows, sampling)
    found = [draw(rows[0], sampling, key) for key in keys]
    assert found == [winner(Dist(p[0].numpy()), key) for key in keys]
    assert found == [int(first(p, [key])) for key in keys]


@needs_compiler
@pytest.mark.parametrize(
    "options", [{}, {"top_p": 0.95}, {"top_k": 50}, {"top_k": 3000, "top_p": 0.9}, {"min_p": 0.02}]
)
def test_a_row_of_a_large_vocabulary(options):
    logits = torch.randn(2, 151_936, generator=torch.Generator().manual_seed(1)).mul(3)
    close(logits, Sampling(**options))


@needs_compiler
def test_a_row_does_not_depend_on_its_neighbours():
    logits = torch.randn(5, 4000, generator=torch.Generator().manual_seed(2)).mul(3)
    sampling = Sampling(top_k=100, top_p=0.8, temperature=0.7)
    whole = chances(logits, sampling)
    assert all(torch.equal(whole[i : i + 1], chances(logits[i : i + 1], sampling)) for i in range(5))


@needs_compiler
@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}, {"typical_p": 0.5}])
def test_broken_rows_stay_broken(options):
    """What is no distribution must not become one."""
    logits = torch.zeros(5, 600)
    logits[0, 300], logits[1], logits[2, 7], logits[3] = float("inf"), float("nan"), float("nan"), float("-inf")
    found = chances(logits, Sampling(**options))
    assert found[:4].isnan().any(-1).all()
    assert found[4].sum() == pytest.approx(1, abs=1e-5)


def test_rows_in_float64_are_cut_too():
    assert chances(torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64), Sampling(top_k=1)).tolist() == [[0, 1, 0]]
