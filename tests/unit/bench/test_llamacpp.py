"""What is converted for llama.cpp, which tests go without; `forerun bench quality` measures what comes of it."""

import json
import sys

import pytest

from forerun.bench.engines.llamacpp import write_gguf


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "mistral"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0}},
    ],
)
def test_what_would_become_another_model_is_refused(folder, tmp_path, monkeypatch, other):
    monkeypatch.setitem(sys.modules, "gguf", None)  # what comes after the check
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModuleNotFoundError, match="gguf"):
        write_gguf(tmp_path, tmp_path / "file")
    (tmp_path / "config.json").write_text(json.dumps(config | other))
    with pytest.raises(NotImplementedError, match="only models of type llama whose rotations are not scaled"):
        write_gguf(tmp_path, tmp_path / "file")
