"""The likeliest tokens are those that sorting finds, wherever they stand."""

import pytest
import torch

from forerun.drafting.top import BLOCK, likeliest


@pytest.mark.parametrize("vocab", [5, 4 * 3 * BLOCK - 1, 4 * 3 * BLOCK, 20 * BLOCK + 7])
def test_it_is_sorting(vocab):
    torch.manual_seed(vocab)
    logits = torch.randn(4, vocab, dtype=torch.float64)
    logits[1] = torch.arange(vocab)  # all in one block, or behind the last
    logits[2] = -torch.arange(vocab)
    values, tokens = likeliest(logits, 3)
    assert torch.equal(tokens, logits.topk(3).indices)
    assert torch.equal(values, logits.topk(3).values)
