"""The compiled ranks are those of the plain reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.ranks import ranks, ranks_here

needs_compiler = pytest.mark.skipif(native.load() is None, reason="nothing was compiled")


def close(logits: torch.Tensor, count: int) -> None:
    found, right = ranks_here(logits, count), ranks(logits.double(), count).numpy()
    possible = right[:, count:-1] > 0
    assert (found[:, :count] == right[:, :count])[possible].all()
    assert found[:, count:] == pytest.approx(right[:, count:], rel=2e-5, abs=2e-6)


@needs_compiler
@given(st.integers(1, 3), st.integers(1, 1200), st.integers(1, 9), st.integers(0, 2**31))
def test_ranks_of_any_rows(rows, vocab, count, seed):
    """Rounded, so that many are equally likely; some are banned."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator).mul(4).round()
    logits[torch.rand(rows, vocab, generator=generator) < 0.2] = -torch.inf
    logits[:, 0] = 0.0
    close(logits, min(count, vocab))


@needs_compiler
def test_a_row_of_a_large_vocabulary():
    close(torch.randn(2, 151_936, generator=torch.Generator().manual_seed(1)), 8)


@needs_compiler
def test_one_possible_token_has_no_entropy():
    logits = torch.full((1, 300), -torch.inf)
    logits[0, 299] = 3.0
    token, chance, entropy = ranks_here(logits, 1)[0]
    assert (token, chance) == (299, 1)
    assert entropy == pytest.approx(0, abs=1e-6)


@needs_compiler
def test_broken_rows_do_no_harm():
    for number in (float("nan"), float("inf")):
        assert ranks_here(torch.full((2, 37), number), 4).shape == (2, 9)


def test_other_dtypes_are_ranked_too():
    assert ranks_here(torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64), 2)[0, :2].tolist() == [1, 2]
