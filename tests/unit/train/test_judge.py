"""`forerun train judge`: the fit is a logistic regression, its figures are right, and the file is a head."""

import json

import pytest
import torch
from click.testing import CliRunner

from forerun.errors import TrainError
from forerun.heads import load
from forerun.models.load import load_model
from forerun.quantize import one_pass
from forerun.train import judge
from forerun.train.cli import command

STORY = "Once upon a time there was a small dog who liked to run in the park with his friend Tom. "


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(STORY * 60)
    return path


def test_a_known_rule_is_found():
    states = torch.randn(4000, 6, generator=torch.Generator().manual_seed(0)) * 3 + 1
    true, bias = torch.tensor([1.0, -0.5, 0.0, 0.3, 0.0, 0.8]), 0.4
    chance = torch.sigmoid(states @ true + bias)
    right = (torch.rand(4000, generator=torch.Generator().manual_seed(1)) < chance).float()
    weight, _ = judge.fit(states, right)
    assert torch.nn.functional.cosine_similarity(weight, true, 0) > 0.99
    said = states @ weight
    assert judge.judged(said, right)["in_order"] == pytest.approx(
        judge.judged(chance.logit(), right)["in_order"], abs=5e-3
    )


def test_right_and_wrong_weigh_the_same():
    states = torch.cat([torch.full((90, 1), 1.0), torch.full((10, 1), -1.0)])
    weight, bias = judge.fit(states, (states[:, 0] > 0).float())
    assert weight[0] > 0
    assert bias == pytest.approx(0, abs=0.05)


def test_figures_are_shares():
    said, right = torch.tensor([2.0, -1.0, 0.5, -3.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert judge.judged(said, right) == {"in_order": 0.75, "right_pass": 0.5, "wrong_pass": 0.5}


def test_a_guess_is_read_in_the_place_of_the_token():
    target = load_model("reference")
    tokens, places, guesses = list(range(40, 60)), [4, 11], [90, 91]
    states = judge._read(target, tokens, guesses, places, -1)
    assert states.shape[0] == 22
    for place, guess, row in zip(places, guesses, states[20:], strict=True):
        alone = judge._read(target, [*tokens[: place + 1], guess], [], [], -1)[-1]
        assert torch.allclose(row, alone, atol=1e-4)
    assert not torch.allclose(states[5], states[20], atol=1e-2)


def test_own_tokens_are_right_and_other_guesses_wrong():
    target = load_model("reference")
    drafter = load_model(target.info.companion)
    tokens = list(range(40, 72))
    states, right = judge._examples(target, drafter, tokens, 2, torch.Generator().manual_seed(0))
    whole = judge._read(target, tokens, [], [], 2)
    assert torch.allclose(states[:31], whole[1:].float(), atol=1e-4)
    assert right[:31].all()
    assert not right[31:].any()
    q = torch.softmax(one_pass(drafter, tokens[:-1], 31).float(), -1)
    sure = q.gather(1, torch.tensor(tokens[1:])[:, None]).sum()
    assert abs(31 - float(sure) - len(right[31:])) < 8


def test_a_head_is_written_and_read(text, tmp_path):
    out = tmp_path / "head.json"
    done = CliRunner().invoke(command, ["judge", "reference", str(out), "--text", str(text), "--layer", "2"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["examples"] > 500
    assert 0 <= found["in_order"] <= 1
    head = load(str(out), "judge.json", "verifier 'judge'", "forerun train judge")
    assert (head.layer, len(head.weight)) == (2, 320)


def test_what_cannot_be_trained_is_said(text, tmp_path):
    with pytest.raises(TrainError, match="names no companion"):
        judge.train_judge("toy:0:5", tmp_path / "x", judge.Job([text]))
    with pytest.raises(TrainError, match="at least two windows"):
        judge.train_judge("reference", tmp_path / "x", judge.Job([text], tokens=300))
    with pytest.raises(TrainError, match="cannot be read"):
        judge.train_judge("reference", tmp_path / "x", judge.Job([tmp_path / "none.txt"]))
