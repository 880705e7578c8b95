"""`forerun train judge`: the head of verifier `judge`, by logistic regression on a target's hidden states.

Nobody marks anything: in windows of given texts the text's own token counts as right, and the companion's guess in its
place, where it is another one, as wrong. The target reads both in one pass, every guess as a branch of the window.
Does not: make right guesses right (a good guess that is not the text's token counts as wrong, so the head is strict);
train anything but the head.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.runner import ModelRunner
from forerun.errors import TrainError
from forerun.files import write_whole
from forerun.models.contract import Model
from forerun.models.load import load_model
from forerun.models.tokenizer import Tokenizer
from forerun.quantize import one_pass
from forerun.types import Work

WINDOW = 256  # tokens that are read together
HELD = 8  # one window in so many is not trained on
DECAY = 1e-3  # of the weights, per standard deviation of their input
STEPS = 200


@dataclass(frozen=True)
class Job:
    """What to train on."""

    texts: Sequence[Path]
    tokens: int = 65536
    layer: int = -1
    seed: int = 0


def train_judge(model: str, out: Path, job: Job) -> dict[str, Any]:
    """Train a head for `model` and its companion, and write it; figures of the held-out windows."""
    target, tokenizer = load_model(model), Tokenizer.from_folder(model)
    if target.info.companion is None:
        raise TrainError(f"{model!r} names no companion to guess; name a model whose folder does.")
    drafter, generator = load_model(target.info.companion), torch.Generator().manual_seed(job.seed)
    read = [_examples(target, drafter, w, job.layer, generator) for w in windows(job, tokenizer)]
    held, rest = read[::HELD], [pair for i, pair in enumerate(read) if i % HELD]
    if not rest:
        raise TrainError(f"the texts have {len(read)} windows of {WINDOW} tokens; give at least two windows of text.")
    weight, bias = fit(*map(torch.cat, zip(*rest, strict=True)))
    states, right = map(torch.cat, zip(*held, strict=True))
    figures = {"examples": sum(len(labels) for _, labels in rest), **judged(states @ weight + bias, right)}
    content = {"layer": job.layer, "bias": round(float(bias), 6), "weight": [round(float(w), 6) for w in weight]}
    write_whole(out, json.dumps(content).encode() + b"\n", "free space there, or name another file")
    return figures


def windows(job: Job, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Windows of every text from its start, an even share of the tokens each."""
    share = job.tokens // len(job.texts)
    for path in job.texts:
        try:
            text = path.read_text(encoding="utf-8")[: share * 32]
        except (OSError, ValueError) as problem:
            raise TrainError(f"the text {str(path)!r} cannot be read ({problem}); give a text in UTF-8.") from problem
        ids = tokenizer.encode(text, bos=True)[:share]
        yield from (ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW))


def _examples(
    target: Model, drafter: Model, tokens: list[int], layer: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [n, hidden] of the window's own tokens and of other guesses, and which are right [n]."""
    count = len(tokens)
    with torch.inference_mode():
        q = torch.softmax(one_pass(drafter, tokens[:-1], count - 1).float(), -1)
        guesses = torch.multinomial(q, 1, generator=generator)[:, 0]
        wrong = [i for i, guess in enumerate(guesses.tolist()) if guess != tokens[i + 1]]
        states = _read(target, tokens, [int(guesses[i]) for i in wrong], wrong, layer)
    own = states[1:count]
    return torch.cat([own, states[count:]]).float(), torch.cat([torch.ones(len(own)), torch.zeros(len(wrong))])


def _read(target: Model, tokens: list[int], guesses: list[int], places: list[int], layer: int) -> torch.Tensor:
    """Hidden states of a window, then of guesses that hang under its tokens at `places`."""
    rows = len(tokens) + len(guesses)
    cache = ContiguousCache(ContiguousCache.Options(), target.info.layout, 1, rows)
    slot, _ = cache.open(())
    cache.reserve(slot, rows)
    work = Work(slot, (*tokens, *guesses), (*range(-1, len(tokens) - 1), *places), logits=(0,), hidden=(layer,))
    return ModelRunner(target, cache).run([work])[0].hidden[layer]


def fit(states: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [hidden] and bias of a logistic regression in which right and wrong weigh the same."""
    mean, scale = states.mean(0), states.std(0) + 1e-6
    inputs, share = (states - mean) / scale, right.mean()
    weights = torch.where(right > 0, 0.5 / share, 0.5 / (1 - share))
    found = torch.zeros(states.shape[1] + 1, requires_grad=True)
    optimiser = torch.optim.LBFGS([found], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        said = inputs @ found[:-1] + found[-1]
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(said, right, weights)
        total: torch.Tensor = entropy + DECAY * found[:-1].square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    weight = found.detach()[:-1] / scale
    return weight, found.detach()[-1] - weight @ mean


def judged(said: torch.Tensor, right: torch.Tensor) -> dict[str, float]:
    """How well scores tell right from wrong: the share of pairs in order, and who passes at 1/2."""
    good, bad = said[right > 0], said[right == 0]
    order = torch.searchsorted(bad.sort().values, good).double().mean() / len(bad)
    passes = [float((part > 0).double().mean()) for part in (good, bad)]
    return {"in_order": round(float(order), 4), "right_pass": round(passes[0], 4), "wrong_pass": round(passes[1], 4)}
