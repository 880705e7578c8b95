"""What every test gets: no network, few threads, and GPU tests only where there is a GPU."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that asks a model hub is wrong; say so at once
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forks after threads, with a warning
os.environ.setdefault("MPLBACKEND", "Agg")  # plots go to files
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores

import pytest
import torch
from hypothesis import settings


@pytest.fixture(autouse=True, scope="session")
def _cache_folder(tmp_path_factory):
    """What is measured here is kept for the tests of one run, and not in the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


settings.register_profile("forerun", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("forerun")  # the same examples every time: a red run can be run again
# Before a release: `--hypothesis-profile thorough`. Tests count their examples in multiples of the profile's.
settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=5000, stateful_step_count=100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
