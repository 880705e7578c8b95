"""What goes to other machines, and what is said where Ray is not there."""

from pathlib import Path

import pytest

from forerun.errors import ConfigError
from forerun.ray import batch
from forerun.ray.cluster import everywhere, share


def test_paths_are_whole_and_threads_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    assert everywhere({"model": "model"}) == {"model": str(tmp_path / "model"), "threads": 1}
    assert everywhere({"threads": 2, "max_requests": 4}) == {"model": "reference", "threads": 2, "max_requests": 4}
    assert share({"threads": 2}) == {"num_cpus": 2, "num_gpus": 0}
    assert share({"threads": 1, "device": "cuda"}) == {"num_cpus": 1, "num_gpus": 1}


def test_without_ray_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("forerun.ray.cluster.find_spec", lambda _: None)
    (tmp_path / "in").write_text('{"custom_id": "a"}\n')
    with pytest.raises(ConfigError, match=r"pip install 'forerun\[ray\]'"):
        batch(tmp_path / "in", tmp_path / "out")
    with pytest.raises(ConfigError, match="at least 1"):
        batch(tmp_path / "in", tmp_path / "out", replicas=0)
