"""The training loop: batches in, weights and checkpoints out.

Does not: know where data comes from or what a recipe file looks like; use more than one device.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from forerun.errors import TrainError
from forerun.train import checkpoint, losses, network
from forerun.train.data import Sampler
from forerun.train.recipe import Recipe, Schedule
from forerun.train.report import Reporter


@dataclass
class Counters:
    """Where a run stands; saved with every checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Run:
    """Everything a training run holds."""

    recipe: Recipe
    folder: Path
    model: torch.nn.Module
    sampler: Sampler
    validation: dict[str, torch.Tensor]
    device: torch.device
    reporter: Reporter
    teacher: torch.nn.Module | None = None
    counters: Counters = field(default_factory=Counters)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.optimizers = make_optimizers(self.model, self.recipe)


def make_optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """AdamW, which decays matrices only; with `muon`, Muon (Jordan 2024) for the matrices inside the layers.

    Muon's updates are scaled to AdamW's size (Moonlight, arXiv 2502.16982), so that both share one learning rate.
    """
    options, rate = recipe.optimise, recipe.schedule.learning_rate
    if options.muon and not hasattr(torch.optim, "Muon"):
        remedy = "install a newer one, or set optimise.muon=false"
        raise TrainError(f"optimise.muon needs PyTorch 2.9, and this is {torch.__version__}; {remedy}.")
    layers = [p for name, p in model.named_parameters() if p.ndim > 1 and ".layers." in name] if options.muon else []
    inside = set(layers)
    matrices = [p for p in model.parameters() if p.ndim > 1 and p not in inside]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=rate, betas=(options.beta1, options.beta2), fused=True)
    if not layers:
        return [adamw]
    muon = torch.optim.Muon(layers, lr=rate, weight_decay=options.weight_decay, adjust_lr_fn="match_rms_adamw")
    return [adamw, muon]


def progress_of(schedule: Schedule, counters: Counters) -> float:
    """Share of the run that is done, by steps or by minutes, whichever is further."""
    by_steps = counters.step / schedule.steps if schedule.steps else 0.0
    by_time = counters.seconds / (60 * schedule.minutes) if schedule.minutes else 0.0
    return min(1.0, max(by_steps, by_time))


def learning_rate(schedule: Schedule, counters: Counters) -> float:
    """Linear warm-up, then a cosine down to `final_fraction` of the peak."""
    if counters.step < schedule.warmup_steps:
        return schedule.learning_rate * (counters.step + 1) / schedule.warmup_steps
    wave = 0.5 * (1 + math.cos(math.pi * progress_of(schedule, counters)))
    return schedule.learning_rate * (schedule.final_fraction + (1 - schedule.final_fraction) * wave)


def sequence_length(schedule: Schedule, progress: float) -> int:
    return [length for start, length in schedule.lengths if start <= progress][-1]


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that a run stops between steps; the second one stops at once."""
    event = threading.Event()

    def handle(*_: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield event
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def train(run: Run) -> None:
    """Run to the end of the schedule; Ctrl-C saves a checkpoint and stops."""
    timers = Timers(run.clock(), run.clock())
    with run.reporter.bar, interrupts() as stopped:
        while (done := progress_of(run.recipe.schedule, run.counters)) < 1.0 and not stopped.is_set():
            began, tokens = run.clock(), run.counters.tokens
            loss = step(run)
            housekeeping(run, timers)
            seconds = run.clock() - began
            run.counters.seconds += seconds
            speed = (run.counters.tokens - tokens) / max(seconds, 1e-9)
            run.reporter.step(vars(run.counters), done, loss, speed)
        save(run)
    if stopped.is_set():
        where = f"step {run.counters.step}, saved in {str(run.folder)!r}"
        message = f"training was stopped at {where}; continue with --resume."
        raise TrainError(message)


def step(run: Run) -> float:
    """One optimiser step over `tokens_per_step` tokens, in passes small enough for the cache."""
    options, schedule = run.recipe.optimise, run.recipe.schedule
    length = sequence_length(schedule, progress_of(schedule, run.counters))
    sequences = max(1, options.tokens_per_step // length)
    batch = run.sampler.batch(run.counters.step, sequences, length).to(run.device)
    passes = batch.split(max(1, options.tokens_per_pass // length))
    run.model.train()
    total = sum(backward(run, rows, len(rows) / sequences) for rows in passes)
    if not math.isfinite(total):
        message = f"the loss became {total} at step {run.counters.step}; lower schedule.learning_rate, then --resume."
        raise TrainError(message)
    torch.nn.utils.clip_grad_norm_(run.model.parameters(), options.clip)
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(schedule, run.counters)
        optimizer.step()
        optimizer.zero_grad()
    run.counters.step += 1
    run.counters.tokens += sequences * length
    return total


def backward(run: Run, rows: torch.Tensor, share: float) -> float:
    """Gradients of one pass, weighted by its share of the step."""
    inputs, targets = rows[:, :-1], rows[:, 1:]
    bf16, distil = run.recipe.optimise.bf16, run.recipe.distil
    student = network.logits(run.model, inputs, bf16=bf16)
    if run.teacher is None:
        loss = losses.next_token(student, targets)
    else:
        with torch.no_grad():
            teacher = network.logits(run.teacher, inputs, bf16=bf16)
        loss = losses.distillation(student, teacher, targets, distil.share, distil.overlap)
    (loss * share).backward()
    return loss.item() * share


@torch.no_grad()
def validate(run: Run) -> dict[str, float]:
    """Mean cross-entropy in nats per token on the held-out windows of every source."""
    run.model.eval()
    bf16 = run.recipe.optimise.bf16
    result = {}
    for name, rows in run.validation.items():
        total = 0.0
        for part in rows.to(run.device).split(8):
            loss = losses.next_token(network.logits(run.model, part[:, :-1], bf16=bf16), part[:, 1:])
            total += loss.item() * len(part)
        result[name] = total / len(rows)
    return result


@torch.no_grad()
def acceptance(run: Run, teacher: torch.nn.Module) -> dict[str, tuple[float, float]]:
    """Per source: share of positions with the same greedy token, and mean sum min(p, q), against the teacher."""
    run.model.eval()
    bf16 = run.recipe.optimise.bf16
    result = {}
    for name, rows in run.validation.items():
        inputs = rows[:, :-1].to(run.device)
        pairs = [
            losses.agreement(network.logits(run.model, part, bf16=bf16), network.logits(teacher, part, bf16=bf16))
            for part in inputs.split(1)
        ]
        same, overlap = zip(*pairs, strict=True)
        result[name] = (sum(same) / len(pairs), sum(overlap) / len(pairs))
    return result


def weighted(run: Run, by_source: dict[str, float]) -> float:
    """One figure: losses weighted as the mixture is."""
    weights = run.recipe.mixture
    return sum(weights[n] * by_source[n] for n in weights) / sum(weights.values())


@dataclass
class Timers:
    """When the run last saved and last validated."""

    saved: float
    validated: float


def housekeeping(run: Run, timers: Timers) -> None:
    """Save and validate when their minutes have passed."""
    report, now = run.recipe.report, run.clock()
    if now - timers.saved >= 60 * report.save_minutes:
        timers.saved = now
        save(run)
    if now - timers.validated >= 60 * report.validate_minutes:
        timers.validated = now
        by_source = validate(run)
        run.reporter.say(f"step {run.counters.step}  validation loss {weighted(run, by_source):.3f}")
        run.reporter.note({**vars(run.counters), "validation": by_source})


def save(run: Run) -> None:
    checkpoint.save_run(run.folder, run.model, run.optimizers, vars(run.counters))


def resume(run: Run) -> None:
    run.counters = Counters(**checkpoint.load_run(run.folder, run.model, run.optimizers))
