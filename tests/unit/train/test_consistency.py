"""Consistency training: trajectories end at the greedy text, losses are the papers', and the folder is a model."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from forerun.errors import TrainError
from forerun.models.load import load_model
from forerun.train import consistency, losses, network
from forerun.train.cli import command
from forerun.train.consistency import PROMPT, Job
from forerun.train.export import export

STORY = "the dog ran home and saw a red ball in the garden with Lily. "
QUICK = Job(tokens=2048, block=4, steps=3, batch=4)


@pytest.fixture
def model(tiny):
    torch.manual_seed(0)
    shape = replace(tiny.model, context=128)
    return network.make(shape, tiny.vocab_size, torch.device("cpu")).eval()


@pytest.fixture
def folder(model, words, tmp_path):
    export(model, words, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(STORY * 200)
    return path


@pytest.fixture
def prompts():
    return torch.randint(320, (12, PROMPT), generator=torch.Generator().manual_seed(1))


def test_trajectories_end_at_the_greedy_text(model, prompts):
    states = consistency.trajectories(model, prompts, 6)
    text = prompts
    with torch.no_grad():
        for _ in range(6):
            text = torch.cat([text, model(input_ids=text).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(states[-1], text[:, PROMPT:])
    assert 2 <= len(states) <= 7
    assert not torch.equal(states[0], states[-1])
    for done, state in enumerate(states):
        assert torch.equal(state[:, :done], states[-1][:, :done])


def test_the_loss_of_a_settled_state_is_only_that_of_the_text(model, prompts, monkeypatch):
    fixed = consistency.trajectories(model, prompts, 4)[-1]
    monkeypatch.setattr(consistency, "trajectories", lambda _model, part, _block: fixed[None, : len(part)])
    job = replace(QUICK, batch=12, keep=0.5)
    text = torch.cat([prompts, fixed], 1)
    own = losses.next_token(model(input_ids=text[:, :-1]).logits, text[:, 1:])
    assert next(consistency.consistent(model, prompts, job)).item() == pytest.approx(0.5 * own.item(), rel=1e-5)


def test_noise_is_earlier_tokens_in_a_row_and_the_text_is_what_is_learnt(model, prompts, monkeypatch):
    seen = []
    right = network.logits

    def watched(of, inputs, *, bf16):
        seen.append(inputs)
        return right(of, inputs, bf16=bf16)

    monkeypatch.setattr(network, "logits", watched)
    loss = next(consistency.noisy(model, prompts, replace(QUICK, noise=5, batch=12)))
    for row in seen[0]:
        match = (row == prompts[:, :-1]).sum(1)
        clean = prompts[match.argmax(), :-1]
        changed = (row != clean).nonzero().flatten().tolist()
        assert changed
        assert changed[-1] - changed[0] < 5
        assert all(token in clean[: changed[0] + 5].tolist() for token in row[changed].tolist())
    assert loss.item() > 0


@pytest.mark.parametrize("keys", [[], ["noise=4"]])
def test_a_model_learns_and_is_written(folder, text, tmp_path, keys):
    out, before = tmp_path / "out", folder.joinpath("model.safetensors").read_bytes()
    flags = [part for key in (*keys, "tokens=2048", "block=4", "steps=3", "batch=4") for part in ("--set", key)]
    done = CliRunner().invoke(command, ["consistency", str(folder), str(out), "--text", str(text), *flags])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["before"]["positions_per_pass"] >= 1
    assert found["before"]["loss"] != found["after"]["loss"]
    assert out.joinpath("model.safetensors").read_bytes() != before == folder.joinpath("model.safetensors").read_bytes()
    assert load_model(str(out)).info.vocab_size == 320


def test_training_makes_the_iteration_shorter(model, prompts):
    """On its own trajectories, which is what the loss says; of a model this small nothing more is shown."""
    job = replace(QUICK, steps=60, batch=12, rate=3e-3, block=6, keep=0.05)
    torch.manual_seed(0)
    with torch.no_grad():
        before = sum(len(consistency.trajectories(model, p[None], 6)) for p in prompts)
    consistency.fit(model, consistency.consistent(model, prompts, job), job)
    assert sum(len(consistency.trajectories(model, p[None], 6)) for p in prompts) < before


@pytest.mark.parametrize("wrong", [{"block": 0}, {"noise": PROMPT}, {"rate": 0.0}])
def test_a_job_that_cannot_be_done_is_refused(wrong):
    with pytest.raises(TrainError, match="give at least 1"):
        Job(**wrong)


def test_too_little_text_is_said(folder, text, tmp_path):
    with pytest.raises(TrainError, match="give more text"):
        consistency.train_consistency(str(folder), tmp_path / "out", [text], replace(QUICK, tokens=256, batch=16))
