"""The average of models is the average of their weights."""

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from forerun.errors import TrainError
from forerun.train.average import average
from forerun.train.cli import command


def folder(tmp_path, name, value, shape=(2, 3)):
    made = tmp_path / name
    made.mkdir()
    save_file({"a": torch.full(shape, value), "b": torch.arange(2.0) * value}, made / "model.safetensors")
    (made / "config.json").write_text(name, encoding="utf-8")
    return made


def test_shares_are_weights_of_the_mean(tmp_path):
    one, two, out = folder(tmp_path, "one", 1.0), folder(tmp_path, "two", 5.0), tmp_path / "out"
    done = CliRunner().invoke(command, ["average", str(out), f"{one}=3", f"{two}=1"])
    assert done.exit_code == 0
    made = load_file(out / "model.safetensors")
    assert torch.equal(made["a"], torch.full((2, 3), 2.0).bfloat16())
    assert torch.equal(made["b"], torch.tensor([0.0, 2.0]).bfloat16())
    assert (out / "config.json").read_text(encoding="utf-8") == "one"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith((".part", ".old"))] == []


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({}, "FOLDER=SHARE"),
        ({"one": -1.0}, "FOLDER=SHARE"),
        ({"one": 1, "none": 1}, "sound"),
        ({"one": 1, "wide": 1}, "shape"),
    ],
)
def test_what_cannot_be_averaged_is_said(tmp_path, shares, said):
    folder(tmp_path, "one", 1.0)
    folder(tmp_path, "wide", 1.0, (4, 4))
    with pytest.raises(TrainError, match=said):
        average({tmp_path / name: share for name, share in shares.items()}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
