"""`forerun train lengths`: the predictor of planner `adaeagle`, by least squares on a target's hidden states.

In windows of given texts both models say what comes next; a draft is taken to be accepted as long as their likeliest
tokens agree along the text.
Does not: let the target write, so that a run goes on where the text is not what the target would have written; train
for sampled text, of which less is accepted.
"""

import json
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
from forerun.train.judge import HELD, WINDOW, Job, windows
from forerun.types import Work

CAP = 16  # tokens; longer runs count as this
RIDGE = 1e-2  # of the weights, per standard deviation of their input


def train_lengths(model: str, out: Path, job: Job) -> dict[str, Any]:
    """Train a predictor for `model` and its companion, and write it; figures of the held-out windows."""
    target, tokenizer = load_model(model), Tokenizer.from_folder(model)
    if target.info.companion is None:
        raise TrainError(f"{model!r} names no companion to guess; name a model whose folder does.")
    drafter = load_model(target.info.companion)
    read = [_examples(target, drafter, window, job.layer) for window in windows(job, tokenizer)]
    held, rest = read[::HELD], [pair for i, pair in enumerate(read) if i % HELD]
    if not rest:
        raise TrainError(f"the texts have {len(read)} windows of {WINDOW} tokens; give at least two windows of text.")
    states, lengths = map(torch.cat, zip(*rest, strict=True))
    weight, bias = fit(states, lengths)
    usual = float(lengths.mean())
    seen, known = map(torch.cat, zip(*held, strict=True))
    figures = {"examples": len(lengths), **judged(seen @ weight + bias - known, usual - known)}
    rounded = {"bias": round(bias, 6), "usual": round(usual, 6), "weight": [round(float(w), 6) for w in weight]}
    content = {"layer": job.layer, **rounded}
    write_whole(out, json.dumps(content).encode() + b"\n", "free space there, or name another file")
    return figures


def _examples(target: Model, drafter: Model, tokens: list[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [n, hidden], and how long a draft is accepted that begins one token later [n]."""
    count = len(tokens)
    cache = ContiguousCache(ContiguousCache.Options(), target.info.layout, 1, count)
    slot, _ = cache.open(())
    cache.reserve(slot, count)
    with torch.inference_mode():
        work = Work(slot, tuple(tokens), logits=tuple(range(count)), hidden=(layer,))
        output = ModelRunner(target, cache).run([work])[0]
        agree = one_pass(drafter, tokens, count).argmax(-1) == output.logits.argmax(-1)
    lengths = runs(agree)[1:]
    known = count - 1 - CAP  # what comes later runs out of the window
    return output.hidden[layer][:known].float(), lengths[:known]


def runs(agree: torch.Tensor) -> torch.Tensor:
    """How many of the next up to CAP places agree without a gap, the place itself included [n] -> [n]."""
    padded = torch.cat([agree.float(), torch.zeros(CAP - 1)])
    return padded.unfold(0, CAP, 1).cumprod(-1).sum(-1)


def fit(states: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Weight [hidden] and bias of a ridge regression."""
    mean, scale = states.mean(0), states.std(0) + 1e-6
    inputs, lengths = ((states - mean) / scale).double(), lengths.double()
    usual = lengths.mean()
    moments = inputs.T @ inputs / len(inputs) + RIDGE * torch.eye(inputs.shape[1], dtype=inputs.dtype)
    found = torch.linalg.solve(moments, inputs.T @ (lengths - usual) / len(inputs))
    weight = (found / scale).float()
    return weight, float(usual - weight.double() @ mean.double())


def judged(error: torch.Tensor, plain: torch.Tensor) -> dict[str, float]:
    """Mean absolute error of the predictor and of the usual length, and how much of the variance is explained."""
    explained = 1 - float(error.square().mean() / plain.square().mean())
    figures = {"error": float(error.abs().mean()), "usual_error": float(plain.abs().mean()), "explained": explained}
    return {name: round(value, 4) for name, value in figures.items()}
