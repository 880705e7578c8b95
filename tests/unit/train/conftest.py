"""A tokenizer, packed text and a recipe small enough for a test."""

import dataclasses
import random

import pytest
import torch
from rich.console import Console

from forerun.train import data, network, recipe, tokenizer
from forerun.train.loop import Run
from forerun.train.report import Reporter
from forerun.train.sources import TEXT, Document

WORDS = (
    "the",
    "dog",
    "ran",
    "home",
    "and",
    "saw",
    "a",
    "red",
    "ball",
    "in",
    "garden",
    "with",
    "Lily",
    "12",
    "x = f(y)",
)


def sentences(count, seed):
    rng = random.Random(seed)  # noqa: S311 (no secrets here)
    return [" ".join(rng.choices(WORDS, k=rng.randint(5, 30))) + "." for _ in range(count)]


@pytest.fixture(scope="session")
def words():
    return tokenizer.train([*sentences(300, 0), "naïve 日本 \t\n"], 320)


@pytest.fixture(scope="session")
def documents():
    return [Document("toy", text, ((TEXT, text),)) for text in sentences(200, 1)]


@pytest.fixture(scope="session")
def tiny():
    shape = recipe.Shape(
        hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, ffn_size=48, context=64
    )
    schedule = recipe.Schedule(steps=6, warmup_steps=2, learning_rate=1e-2, lengths=((0.0, 16), (0.6, 32)))
    optimise = recipe.Optimise(tokens_per_step=64, tokens_per_pass=32, bf16=False)
    return recipe.Recipe(
        vocab_size=320, model=shape, schedule=schedule, optimise=optimise, threads=1, mixture={"toy": 1.0}
    )


@pytest.fixture
def make_run(tiny, words, documents):
    """A function that builds a run of the tiny recipe in a folder."""
    train, held = data.split(documents)

    def make(folder, **changes):
        chosen = dataclasses.replace(tiny, **changes)
        torch.manual_seed(chosen.seed)
        folder.mkdir(exist_ok=True)
        cpu = torch.device("cpu")
        return Run(
            recipe=chosen,
            folder=folder,
            model=network.make(chosen.model, chosen.vocab_size, cpu),
            sampler=data.Sampler({"toy": data.pack(train, words)}, chosen.mixture, chosen.seed),
            validation={"toy": data.windows(data.pack(held, words), 16, 4)},
            device=cpu,
            reporter=Reporter(Console(quiet=True), chosen.name, folder, 1),
        )

    return make
