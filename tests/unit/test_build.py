"""What an engine is built of."""

import pytest
import torch

from forerun.build import load_target
from forerun.config import Config
from forerun.kernels import native
from forerun.models.native import cores


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(native.load() is None or cores() < 2, reason="nothing was compiled, or there is one core")
@pytest.mark.parametrize(("passes", "wanted"), [("ragged", 1), ("invariant", 2)])
def test_pytorch_has_threads_where_it_runs_the_passes(passes, wanted):
    torch.set_num_threads(3 - wanted)
    load_target(Config(threads=2, passes=passes))
    assert torch.get_num_threads() == wanted
