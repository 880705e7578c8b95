"""`forerun train consistency`: teach a target to guess several tokens at once, for the drafters that ask itself.

Two ways. By default consistency on its own Jacobi trajectories (CLLM, 2403.00835): behind a prompt a block of tokens is
iterated to its fixed point, the model's greedy text; behind any state on the way there the model learns to say what it
says behind the fixed point, and the tokens of prompt and fixed point, so that it stays what it was. With `noise` some
tokens in a row of the text itself are replaced by earlier ones (Make Some Noise, 2406.17404), and the model learns to
say what comes all the same.
Does not: keep the text of the model it begins with: what comes out is another target, with its own loss; train a model
of another shape than Llama's.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from forerun.errors import TrainError
from forerun.models.load import companion_of, folder_of
from forerun.models.tokenizer import Tokenizer
from forerun.train import judge, losses, network, tokenizer
from forerun.train.export import export
from forerun.train.lm import load_folder, pick_device

PROMPT = 64  # tokens before a block
HELD = 8  # one prompt in so many is not trained on
WARM_UP = 10  # steps
_TOGETHER = 64  # prompts of a pass without gradients


@dataclass(frozen=True)
class Job:
    """How to train; the keys of --set."""

    tokens: int = 32768  # of all texts together
    block: int = 16
    noise: int = 0  # tokens in a row that are replaced; 0: trajectories
    keep: float = 1.0  # weight of the tokens of prompt and fixed point beside consistency
    steps: int = 200
    batch: int = 16
    rate: float = 3e-4
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if min(self.block, self.steps, self.batch) < 1 or not 0 <= self.noise < PROMPT - 1 or not self.rate > 0:
            told = (
                f"block is {self.block}, noise {self.noise}, steps {self.steps}, batch {self.batch}, rate {self.rate}"
            )
            remedy = f"give at least 1, a rate above 0, and noise below {PROMPT - 1}"
            raise TrainError(f"forerun train consistency: {told}; {remedy}.")


def train_consistency(model: str, out: Path, texts: Sequence[Path], job: Job) -> dict[str, Any]:
    """Train a copy of `model` and write it; figures of held-out prompts before and after."""
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    folder, device = folder_of(model), pick_device("auto")
    student, prompts = load_folder(folder, device), read(str(folder), texts, job.tokens).to(device)
    held, rest = prompts[::HELD], prompts[torch.arange(len(prompts)) % HELD > 0]
    if len(rest) < job.batch:
        found = f"the texts have {len(rest)} prompts of {PROMPT} tokens to train on, and a batch {job.batch}"
        raise TrainError(f"{found}; give more text, or --set batch=N.")
    before = measured(student, held, job)
    losses_of = noisy(student, rest, job) if job.noise else consistent(student, rest, job)
    fit(student, losses_of, job)
    companion = companion_of(folder)
    beside = os.path.relpath(companion, out.resolve()) if companion is not None else ""
    export(student, tokenizer.load(folder), out, beside)
    return {"prompts": len(rest), "before": before, "after": measured(student, held, job)}


def read(folder: str, texts: Sequence[Path], tokens: int) -> torch.Tensor:
    """Prompts of the texts, [prompts, PROMPT]."""
    windows = list(judge.windows(judge.Job(texts, tokens), Tokenizer.from_folder(folder)))
    return torch.tensor(windows).reshape(-1, PROMPT)


@torch.no_grad()
def trajectories(model: LlamaForCausalLM, prompts: torch.Tensor, block: int) -> torch.Tensor:
    """Jacobi states of every prompt from tokens of its own to the fixed point, [states, prompts, block]."""
    start = prompts[:, torch.randint(PROMPT, (block,))]
    states = [start]
    while len(states) < 2 or not torch.equal(states[-1], states[-2]):  # noqa: PLR2004 - nothing to compare with
        states.append(behind(model, prompts, states[-1]).argmax(-1))
    return torch.stack(states[:-1])


def behind(model: LlamaForCausalLM, prompts: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Logits for every position of a block, each from the prompt and the block before it, [prompts, block, vocab]."""
    inputs = torch.cat([prompts, blocks[:, :-1]], 1)
    return network.logits(model, inputs, bf16=False)[:, PROMPT - 1 :]


def consistent(model: LlamaForCausalLM, prompts: torch.Tensor, job: Job) -> Iterator[torch.Tensor]:
    """Losses of random states on trajectories that the model has at the start."""
    parts = [trajectories(model, part, job.block) for part in prompts.split(_TOGETHER)]
    paths = [part[:, i] for part in parts for i in range(part.shape[1])]
    while True:
        chosen = torch.randperm(len(paths))[: job.batch].tolist()
        states = torch.stack([paths[i][int(torch.randint(len(paths[i]), ()))] for i in chosen])
        fixed = torch.stack([paths[i][-1] for i in chosen])
        text = torch.cat([prompts[chosen], fixed], 1)
        own = network.logits(model, text[:, :-1], bf16=False)
        said = behind(model, prompts[chosen], states)
        consistency = losses.distillation(said, own[:, PROMPT - 1 :].detach(), fixed, 1.0)
        yield consistency + job.keep * losses.next_token(own, text[:, 1:])


def noisy(model: LlamaForCausalLM, prompts: torch.Tensor, job: Job) -> Iterator[torch.Tensor]:
    """Losses of the text's own tokens behind one segment of noise per prompt."""
    while True:
        rows = prompts[torch.randperm(len(prompts))[: job.batch]]
        inputs = rows[:, :-1].clone()
        for row in inputs:
            at = int(torch.randint(1, PROMPT - job.noise, ()))
            row[at : at + job.noise] = row[torch.randint(at, (job.noise,))]
        yield losses.next_token(network.logits(model, inputs, bf16=False), rows[:, 1:])


def fit(model: LlamaForCausalLM, losses_of: Iterator[torch.Tensor], job: Job) -> None:
    """Steps of AdamW, warmed up and then slower from step to step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=job.rate, weight_decay=0.0)
    model.train()
    for step in range(job.steps):
        optimiser.param_groups[0]["lr"] = job.rate * min((step + 1) / WARM_UP, 1 - step / job.steps)
        optimiser.zero_grad()
        next(losses_of).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval()


@torch.no_grad()
def measured(model: LlamaForCausalLM, prompts: torch.Tensor, job: Job) -> dict[str, float]:
    """Positions per Jacobi pass over a block, and the loss of the prompts' own tokens in nats."""
    passes = [len(trajectories(model, prompt[None], job.block)) - 1 for prompt in prompts]
    text = losses.next_token(network.logits(model, prompts[:, :-1], bf16=False), prompts[:, 1:])
    return {"positions_per_pass": round(job.block * len(passes) / sum(passes), 3), "loss": round(float(text), 4)}
