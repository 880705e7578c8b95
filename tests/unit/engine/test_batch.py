"""The best token of every row, whatever the rows are made of."""

import pytest
import torch

from forerun.engine.batch import peaks
from forerun.types import Peaks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_lowest_of_the_best_tokens_and_its_logit(dtype):
    logits = torch.tensor([[0.5, 2.0, -1.0, 2.0], [3.0, 3.0, 3.0, 3.0], [-1.5, -2.0, -1.0, -8.0]], dtype=dtype)
    found = peaks(logits)
    assert (found.best, found.peak) == ([1, 0, 2], [2.0, 3.0, -1.0])
    assert peaks(logits[:0]) == Peaks((), ())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("at", range(3))
def test_a_row_with_a_nan_peaks_in_it(at, dtype):
    logits = torch.tensor([[1.0, 9.0, 2.0], [1.0, 9.0, 2.0]], dtype=dtype)
    logits[0, at] = float("nan")
    found = peaks(logits)
    (_, best), (broken, peak) = found.best, found.peak
    assert best == 1
    assert peak == 9.0
    assert broken != broken  # noqa: PLR0124 - only NaN differs from itself
