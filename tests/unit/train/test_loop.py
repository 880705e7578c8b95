"""A run resumes as if never stopped, keeps its checkpoint when the disk is full, and follows its schedule."""

import dataclasses
import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from forerun import files
from forerun.errors import TrainError
from forerun.train import checkpoint, loop, network, recipe
from forerun.train.loop import Counters


def weights(run):
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


def stop_after(monkeypatch, steps, sent):
    """Send Ctrl-C during the given step, as a terminal would."""
    real = loop.step

    def step(run):
        if run.counters.step + 1 == steps and not sent:
            sent.append(run.counters.step)
            signal.raise_signal(signal.SIGINT)
        return real(run)

    monkeypatch.setattr(loop, "step", step)


@pytest.fixture
def optimise(tiny):
    """The tiny recipe's optimiser, one or the other: `optimise(muon=True)`."""
    return lambda muon: {"optimise": dataclasses.replace(tiny.optimise, muon=muon)}


both = pytest.mark.parametrize("muon", [False, True], ids=["adamw", "muon"])


@both
def test_resumed_run_equals_uninterrupted_one_bit_for_bit(muon, make_run, optimise, tmp_path, monkeypatch):
    whole = make_run(tmp_path / "whole", **optimise(muon))
    loop.train(whole)
    stopped = make_run(tmp_path / "parts", **optimise(muon))
    stop_after(monkeypatch, 3, [])
    with pytest.raises(TrainError, match=r"stopped at step 3, saved in .* continue with --resume"):
        loop.train(stopped)
    monkeypatch.undo()
    resumed = make_run(tmp_path / "parts", seed=0, **optimise(muon))
    with torch.no_grad():
        next(resumed.model.parameters()).zero_()
    loop.resume(resumed)
    assert resumed.counters.step == 3
    loop.train(resumed)
    assert resumed.counters.step == whole.counters.step == 6
    assert resumed.counters.tokens == whole.counters.tokens
    expected = weights(whole)
    for name, tensor in weights(resumed).items():
        assert torch.equal(tensor, expected[name]), name


def test_second_interrupt_stops_at_once():
    with loop.interrupts() as stopped:
        signal.raise_signal(signal.SIGINT)
        assert stopped.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_full_disk_leaves_the_last_checkpoint(make_run, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    loop.step(run)
    loop.save(run)
    before = (run.folder / checkpoint.FILE).read_bytes()
    loop.step(run)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(TrainError, match=r"No space left on device.*free space.*intact"):
        loop.save(run)
    assert (run.folder / checkpoint.FILE).read_bytes() == before
    assert [p.name for p in run.folder.iterdir()] == [checkpoint.FILE]


def test_checkpoint_of_another_shape_is_refused(make_run, tmp_path, tiny):
    run = make_run(tmp_path / "run")
    loop.save(run)
    wider = make_run(tmp_path / "run", model=recipe.Shape(**{**vars(tiny.model), "ffn_size": 64}))
    with pytest.raises(TrainError, match="use the recipe the run began with"):
        loop.resume(wider)


def test_nothing_to_resume_is_said(make_run, tmp_path):
    with pytest.raises(TrainError, match="start again without --resume"):
        loop.resume(make_run(tmp_path / "run"))


@both
def test_a_run_saved_before_its_first_step_resumes(muon, make_run, optimise, tmp_path):
    loop.save(make_run(tmp_path / "run", **optimise(muon)))
    resumed = make_run(tmp_path / "run", **optimise(muon))
    loop.resume(resumed)
    whole = make_run(tmp_path / "whole", **optimise(muon))
    assert loop.step(resumed) == loop.step(whole)
    assert all(torch.equal(p, weights(whole)[name]) for name, p in weights(resumed).items())


@both
def test_a_checkpoint_of_the_other_optimiser_is_refused(muon, make_run, optimise, tmp_path):
    run = make_run(tmp_path / "run", **optimise(muon))
    loop.step(run)
    loop.save(run)
    kind = "AdamW" if muon else "Muon"
    with pytest.raises(TrainError, match=f"which {kind} does not know; use the recipe the run began with"):
        loop.resume(make_run(tmp_path / "run", **optimise(not muon)))


def test_muon_moves_the_matrices_inside_the_layers_and_adamw_the_rest(make_run, optimise, tmp_path):
    run = make_run(tmp_path / "run", **optimise(muon=True))
    found = {name: type(optimizer).__name__ for name, _, optimizer in checkpoint.owned(run.model, run.optimizers)}
    layer = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
    layer |= {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
    inside = {f"model.layers.0.{name}.weight" for name in layer}
    norms = {"model.norm.weight", *(f"model.layers.0.{n}_layernorm.weight" for n in ("input", "post_attention"))}
    assert found == dict.fromkeys(inside, "Muon") | dict.fromkeys(norms | {"model.embed_tokens.weight"}, "AdamW")
    assert sum(1 for _ in run.model.parameters()) == len(found)
    decay = {group["weight_decay"]: len(group["params"]) for group in run.optimizers[0].param_groups}
    assert decay == {run.recipe.optimise.weight_decay: 1, 0.0: len(norms)}


def test_every_optimiser_follows_the_schedule(make_run, optimise, tmp_path):
    run = make_run(tmp_path / "run", **optimise(muon=True))
    for _ in range(3):
        rate = loop.learning_rate(run.recipe.schedule, run.counters)
        loop.step(run)
        assert {group["lr"] for optimizer in run.optimizers for group in optimizer.param_groups} == {rate}
    assert all(p.grad is None for p in run.model.parameters())


def test_muon_moves_a_matrix_as_far_as_adamw_would(make_run, optimise, tmp_path):
    """The first step of a matrix: its root mean square is about 0.2 learning rates, whatever its shape."""
    run = make_run(tmp_path / "run", optimise=dataclasses.replace(optimise(muon=True)["optimise"], weight_decay=0.0))
    before, rate = weights(run), loop.learning_rate(run.recipe.schedule, run.counters)
    loop.step(run)
    for name, _, optimizer in checkpoint.owned(run.model, run.optimizers):
        if optimizer is run.optimizers[1]:
            moved = (weights(run)[name] - before[name]).square().mean().sqrt().item() / rate
            assert 0.1 < moved < 0.3, name


def test_a_torch_without_muon_is_said(make_run, optimise, tmp_path, monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(TrainError, match=r"needs PyTorch 2\.9.*set optimise\.muon=false"):
        make_run(tmp_path / "run", **optimise(muon=True))


@both
def test_loss_falls(muon, make_run, optimise, tmp_path):
    schedule = recipe.Schedule(steps=40, warmup_steps=2, lengths=((0.0, 16),))
    run = make_run(tmp_path / "run", schedule=schedule, **optimise(muon))
    before = loop.weighted(run, loop.validate(run))
    loop.train(run)
    assert loop.weighted(run, loop.validate(run)) < before - 0.3
    assert len((run.folder / "log.jsonl").read_text().splitlines()) == 40


def test_distilling_moves_the_student_to_the_teacher(make_run, tmp_path):
    teacher = make_run(tmp_path / "teacher", seed=1).model.eval()
    run = make_run(tmp_path / "run", distil=recipe.Distil(teacher="set below", share=1.0))
    run.teacher = teacher
    first = loop.step(run)
    for _ in range(5):
        last = loop.step(run)
    assert last < first


def test_loss_that_is_not_a_number_stops_the_run(make_run, tmp_path):
    run = make_run(tmp_path / "run")
    with torch.no_grad():
        next(run.model.parameters()).fill_(float("nan"))
    with pytest.raises(TrainError, match="the loss became nan at step 0"):
        loop.step(run)


def test_cosine_reaches_its_end_by_steps_or_by_time():
    by_steps = recipe.Schedule(steps=100, warmup_steps=10, learning_rate=1.0, final_fraction=0.1)
    rates = [loop.learning_rate(by_steps, Counters(step=s)) for s in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) <= 1.0
    assert rates[100] == pytest.approx(0.1)
    by_time = recipe.Schedule(steps=0, minutes=1, warmup_steps=0, learning_rate=1.0, final_fraction=0.0)
    assert loop.learning_rate(by_time, Counters(step=5, seconds=30.0)) == pytest.approx(0.5)
    assert loop.learning_rate(by_time, Counters(step=5, seconds=60.0)) == pytest.approx(0.0)


def test_sequences_grow_with_progress():
    schedule = recipe.Schedule(lengths=((0.0, 256), (0.5, 512)))
    assert [loop.sequence_length(schedule, p) for p in (0.0, 0.49, 0.5, 1.0)] == [256, 256, 512, 512]


def test_training_attention_equals_the_fused_one(make_run, tmp_path):
    model = make_run(tmp_path / "run").model.eval()
    ids = torch.randint(0, 320, (2, 24))
    quick = network.logits(model, ids, bf16=False)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(quick, network.logits(model, ids, bf16=False), atol=1e-5, rtol=1e-5)


def test_checkpoints_hold_no_pickle():
    package = Path(loop.__file__).parent
    assert not [p for p in package.rglob("*.py") if "torch.save" in p.read_text() or "import pickle" in p.read_text()]


def test_acceptance_of_oneself_is_one(make_run, tmp_path):
    run = make_run(tmp_path / "run")
    same, overlap = loop.acceptance(run, run.model)["toy"]
    assert same == 1.0
    assert overlap == pytest.approx(1.0)
    assert loop.acceptance(run, make_run(tmp_path / "other", seed=5).model)["toy"][1] < 0.999
