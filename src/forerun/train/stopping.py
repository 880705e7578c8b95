"""`forerun train stopping`: the network by which tree `specdec-pp` or `disco` ends a chain (2405.19715, 2405.04304).

The target goes on from windows of given texts, and both models read what it wrote. There a token that the drafter draws
is accepted with sum min(p, q); greedily, where the likeliest tokens agree. The network learns that from the drafter's
hidden state (specdec-pp) or the traits of its distribution (disco); a rejection weighs more than an acceptance.
Does not: train on drafted tokens in the text, as SpecDec++ does for a head that reads the drafted token itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from forerun.bench.drive import generate
from forerun.caches.contiguous import ContiguousCache
from forerun.engine.runner import ModelRunner
from forerun.errors import TrainError, unknown
from forerun.files import write_whole
from forerun.heads import Network
from forerun.llm import LLM
from forerun.look import Traits, traits_of
from forerun.models.contract import Model
from forerun.models.load import load_model
from forerun.models.tokenizer import Tokenizer
from forerun.train import judge
from forerun.train.judge import HELD, WINDOW, Job
from forerun.trees import disco, specdec_pp
from forerun.types import Floats, Output, Sampling, Work

PROMPT = 64  # tokens of a window that are given; the target writes the rest
TOGETHER = 16  # windows
PLACES = 12  # of the longest chain
BATCH = 256
DECAY = 1e-2
TREES = ("specdec-pp", "disco")


@dataclass(frozen=True)
class Recipe:
    """How to train: `weight` of a rejection against an acceptance, `layers` before the last one, `width` of disco's."""

    tree: str = "specdec-pp"
    temperature: float = 1.0
    weight: float = 6.0
    layers: int = 3
    width: int = 32
    epochs: int = 10
    rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise TrainError(unknown("forerun train stopping", "tree", self.tree, TREES))


@dataclass(frozen=True)
class Examples:
    """Positions of texts."""

    inputs: torch.Tensor  # [n, what the network reads]
    traits: torch.Tensor  # [n, what the form without a network reads]
    chance: torch.Tensor  # [n], of acceptance


def train_stopping(model: str, out: Path, job: Job, recipe: Recipe) -> dict[str, Any]:
    """Train a network for `model` and its companion, and write it; figures of the held-out windows."""
    llm = LLM(model, drafter="none", decoder="autoregressive", max_requests=TOGETHER)
    if llm.model.info.companion is None:
        raise TrainError(f"{model!r} names no companion to guess; name a model whose folder does.")
    drafter, generator = load_model(llm.model.info.companion), torch.Generator().manual_seed(job.seed)
    runners = [ModelRunner(one, _cache(one)) for one in (llm.model, drafter)]
    torch.manual_seed(job.seed)  # of the network's first weights
    windows = list(judge.windows(job, Tokenizer.from_folder(model)))
    if len(windows) < 2:  # noqa: PLR2004 - one to learn from, one to be held out
        raise TrainError(f"the texts have {len(windows)} windows of {WINDOW} tokens; give at least two of them.")
    texts = written(llm, windows, recipe.temperature, job.seed)
    read = [_examples(runners, text, job.layer, recipe, generator) for text in texts]
    held, learned = joined(read[::HELD]), joined([one for i, one in enumerate(read) if i % HELD])
    network = Network(recipe.tree, job.layer, fit(learned, recipe, generator).parts())
    write_whole(out, network.content, "free space there, or name another file")
    usual = round(float(learned.chance.mean()), 4)
    return {"examples": len(learned.chance), "accepted": usual, **judged(network, learned, held, generator)}


def _cache(model: Model) -> ContiguousCache:
    return ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, WINDOW)


def written(llm: LLM, windows: Sequence[Sequence[int]], temperature: float, seed: int) -> Iterator[list[int]]:
    """The first tokens of every window, and how the target goes on."""
    for start in range(0, len(windows), TOGETHER):
        prompts = [window[:PROMPT] for window in windows[start : start + TOGETHER]]
        draws = [
            Sampling(temperature=temperature, max_tokens=WINDOW - PROMPT, seed=seed + start + i)
            for i in range(len(prompts))
        ]
        texts = generate(llm, prompts, draws).texts
        yield from ([*prompt, *text] for prompt, text in zip(prompts, texts, strict=True))


def joined(parts: Sequence[Examples]) -> Examples:
    """All together."""
    return Examples(*(torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "traits", "chance")))


def _examples(
    runners: Sequence[ModelRunner], text: list[int], layer: int, recipe: Recipe, generator: torch.Generator
) -> Examples:
    """Of every token that the target wrote, as seen from the one before it."""
    rows = range(PROMPT - 1, len(text) - 1)
    target, drafter = (_read(runner, text, rows, layer) for runner in runners)
    raw = torch.softmax(drafter.logits.float(), -1)
    if recipe.temperature > 0:
        p, q = (torch.softmax(one.logits.float() / recipe.temperature, -1) for one in (target, drafter))
        chance, raw = torch.minimum(p, q).sum(-1), q
    else:
        chance = (target.logits.argmax(-1) == raw.argmax(-1)).float()
    traits = [Traits.of(row) for row in traits_of(raw).tolist()]
    if recipe.tree == "disco":
        seen = placed(traits, chance, generator)
        return Examples(seen, seen, chance)
    seen = torch.tensor([specdec_pp.features(one)[1:] for one in traits])
    return Examples(drafter.hidden[layer][rows.start : rows.stop].float(), seen, chance)


def _read(runner: ModelRunner, text: list[int], rows: Sequence[int], layer: int) -> Output:
    """What a model makes of a text, in a slot that is given back."""
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, len(text))
    with torch.inference_mode():
        found = runner.run([Work(slot, tuple(text), logits=tuple(rows), hidden=(layer,))])[0]
    runner.cache.close(slot)
    return found


def placed(traits: Sequence[Traits], chance: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Features as of the first, second, ... token of chains that were accepted so far [n, features]."""
    found, place = list[tuple[float, ...]](), 1
    kept = torch.rand(len(chance), generator=generator) < chance
    for one, goes_on in zip(traits, kept.tolist(), strict=True):
        found.append(disco.features(one, place)[1:])
        place = place + 1 if goes_on and place < PLACES else 1
    return torch.tensor(found)


class Layers(torch.nn.Module):
    """`heads.Network` while it is trained: at first every added layer adds nothing."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.each = [torch.nn.Linear(*pair) for pair in pairwise(widths)]
        self.layers = torch.nn.ModuleList(self.each)
        for layer in self.each:
            if layer.in_features == layer.out_features:
                torch.nn.init.zeros_(layer.weight)
                torch.nn.init.zeros_(layer.bias)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Log-odds [n] of inputs [n, reads]."""
        for layer in self.each[:-1]:
            found = torch.nn.functional.silu(layer(inputs))
            inputs = inputs + found if found.shape == inputs.shape else found
        odds: torch.Tensor = self.each[-1](inputs)[:, 0]
        return odds

    def parts(self) -> list[tuple[Floats, Floats]]:
        """Weight and bias of every layer."""
        return [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in self.each]


def fit(learned: Examples, recipe: Recipe, generator: torch.Generator) -> Layers:
    """A network that has learned the examples."""
    reads = learned.inputs.shape[1]
    found = Layers([reads, *([recipe.width] if recipe.tree == "disco" else [reads] * recipe.layers), 1])
    optimiser = torch.optim.AdamW(found.parameters(), recipe.rate, weight_decay=DECAY)
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(learned.chance), generator=generator).split(BATCH):
            optimiser.zero_grad()
            loss(found(learned.inputs[rows]), learned.chance[rows], recipe.weight).backward()
            optimiser.step()
    return found


def loss(odds: torch.Tensor, chance: torch.Tensor, weight: float) -> torch.Tensor:
    """The mean entropy of accepted and of rejected tokens, of which the latter weigh so much more."""
    log = torch.nn.functional.logsigmoid
    refused = weight * (1 - chance)
    return -(chance * log(odds) + refused * log(-odds)).sum() / (chance + refused).sum()


def judged(network: Network, learned: Examples, held: Examples, generator: torch.Generator) -> dict[str, float]:
    """The share of pairs of an accepted and a rejected token in order; the same of the form without a network."""
    seen, said = (torch.rand(len(one.chance), generator=generator) < one.chance for one in (learned, held))
    weight, bias = judge.fit(learned.traits, seen.float())
    scores = {"in_order": torch.from_numpy(network(held.inputs.numpy())), "by_traits": held.traits @ weight + bias}
    return {name: judge.judged(score, said.float())["in_order"] for name, score in scores.items()}
