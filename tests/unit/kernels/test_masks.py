"""The likeliest token that a mask allows, compiled and plain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.masks import count, forbidden, ids, likeliest, packed, plain, unpacked

needs_compiler = pytest.mark.skipif(native.load() is None, reason="nothing was compiled")


@needs_compiler
@given(st.integers(1, 1200), st.sampled_from([0.0, 0.002, 0.3, 0.99, 1.0]), st.integers(0, 2**31))
def test_of_any_row_and_mask(vocab, share, seed):
    """Rounded, so that many are equally likely; some are banned, and large ones stand behind the row."""
    rng = np.random.default_rng(seed)
    logits = np.full(vocab + 64, 99.0, np.float32)
    logits[:vocab] = rng.normal(scale=3, size=vocab).round()
    logits[:vocab][rng.random(vocab) < 0.2] = -np.inf
    mask = rng.random(vocab) < share
    bits, row = packed(mask), logits[:vocab]
    found = likeliest(row, bits)
    assert found == plain(row, bits)
    left = np.where(mask, logits[:vocab], -np.inf)
    assert found == (int(left.argmax()) if left.max() > -np.inf else None)


@pytest.mark.parametrize("vocab", [1, 7, 8, 300])
@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_compiler), False])
def test_bits_and_masks_say_the_same(vocab, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native, "load", lambda: None)
    mask = np.random.default_rng(vocab).random(vocab) < 0.5
    bits = packed(mask)
    assert len(bits) == -(-vocab // 8)
    assert np.array_equal(unpacked(bits, vocab), mask)
    assert np.array_equal(ids(bits), np.flatnonzero(mask))
    assert np.array_equal(forbidden(bits, vocab), np.flatnonzero(~mask))
    assert count(bits) == mask.sum()


def test_a_row_in_double_precision_is_read_as_it_is():
    row = np.array([0.0, 1.0, 1.0 + 1e-12, 2.0])
    assert likeliest(row, packed(np.array([True, True, True, False]))) == 2
