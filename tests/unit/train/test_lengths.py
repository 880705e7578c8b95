"""`forerun train lengths`: runs are counted rightly, a known rule is found again, and the file is a predictor."""

import json

import pytest
import torch
from click.testing import CliRunner

from forerun.errors import TrainError
from forerun.heads import load
from forerun.train import lengths
from forerun.train.cli import command

STORY = "Once upon a time there was a small dog who liked to run in the park with his friend Tom. "


def test_a_run_ends_at_the_first_difference():
    agree = torch.tensor([1, 1, 0, 1, 1, 1, 0, 0], dtype=torch.bool)
    assert lengths.runs(agree).tolist() == [2, 1, 0, 3, 2, 1, 0, 0]
    assert lengths.runs(torch.ones(40, dtype=torch.bool)).max() == lengths.CAP


def test_a_known_rule_is_found():
    states = torch.randn(4000, 6, generator=torch.Generator().manual_seed(0)) * 3 + 1
    true = torch.tensor([1.0, -0.5, 0.0, 0.3, 0.0, 0.8])
    weight, bias = lengths.fit(states, states @ true + 2)
    assert weight.tolist() == pytest.approx(true.tolist(), abs=0.02)
    assert bias == pytest.approx(2, abs=0.05)


def test_figures_compare_with_the_usual_length():
    error, plain = torch.tensor([0.5, -0.5]), torch.tensor([1.0, -1.0])
    assert lengths.judged(error, plain) == {"error": 0.5, "usual_error": 1.0, "explained": 0.75}


def test_the_command_writes_a_predictor(tmp_path):
    text, out = tmp_path / "story.txt", tmp_path / "lengths.json"
    text.write_text(STORY * 60)
    found = CliRunner().invoke(command, ["lengths", "reference", str(out), "--text", str(text), "--tokens", "1024"])
    assert found.exit_code == 0, found.output
    figures = json.loads(found.output.splitlines()[-1])
    predictor = load(str(out), "lengths.json", "planner 'adaeagle'", "forerun train lengths")
    assert figures["examples"] > 0
    assert len(predictor.weight) == 320
    assert 0 <= predictor.usual <= lengths.CAP


def test_a_target_alone_or_too_little_text_is_refused(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text(STORY)
    with pytest.raises(TrainError, match="at least two windows"):
        lengths.train_lengths("reference", tmp_path / "x", lengths.Job([text]))
    with pytest.raises(TrainError, match="companion"):
        lengths.train_lengths("toy:0:5", tmp_path / "x", lengths.Job([text]))
