"""What a constraint adds to a step, by the clock: engines beside each other, with and without it, step by step in turn.

A model's pass runs as ever; its logits are then those of a larger vocabulary, with a script's next token on top, so
that both engines write the same valid instance of a schema, and every mask is met for the first time. Greedy and
sampled, where the model's best token is allowed, or never is and the script's comes second.
Does not: run the larger vocabulary's output layer, which would make the pass longer and the share smaller.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from forerun.bench.covered import Row
from forerun.bench.figures import quantile
from forerun.build import assemble, choose_all, setup_for
from forerun.caches.contract import Cache
from forerun.config import Config
from forerun.engine.engine import Engine
from forerun.errors import RequestError
from forerun.models.contract import Model
from forerun.types import Constraint, Pass, PassOutput, Sampling, Setup

BATCHES = (1, 8)
LONGEST = 24  # tokens of an instance
PROMPT = (1, 2, 3, 4)
_TOP = 30.0  # the script's logit; the others are about 0
_NEVER = b"\0"  # what no JSON has
WAYS: Mapping[str, tuple[float, bool]] = {
    "greedy": (0.0, False),
    "refused": (0.0, True),
    "sampled": (1.0, False),
    "sampled, refused": (1.0, True),
}


class Scripted(Model):
    """A model over another vocabulary, which says a script whatever it is told."""

    def __init__(self, model: Model, vocab: int) -> None:
        self._model, self._own = model, model.info.vocab_size
        self.info = replace(model.info, vocab_size=vocab, eos=(), companion=None)
        self._rest = torch.randn(1, vocab, generator=torch.Generator().manual_seed(0))
        self.script: Sequence[int] = ()
        self.lure: int | None = None  # a token above the script's

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        found = self._model.forward(replace(work, tokens=work.tokens % self._own), cache)
        places = (work.positions if work.logits is None else work.positions[work.logits]) - (len(PROMPT) - 1)
        logits = self._rest.repeat(len(places), 1)
        for row, place in enumerate(places.tolist()):
            if 0 <= place < len(self.script):
                logits[row, self.script[place]] = _TOP
        if self.lure is not None:
            logits[:, self.lure] = 2 * _TOP
        return PassOutput(logits, found.hidden)


def measure(model: Model, setup: Setup, rows: Iterator[Row], config: Mapping[str, Any]) -> dict[str, Any]:
    """Every batch size over one vocabulary, in every way."""
    known = [(row.constraint, script) for row in rows if (script := _script(row, setup))]
    scripted, never = Scripted(model, setup.vocab), setup.open_spelling("").encode(_NEVER)[0]
    found: dict[str, Any] = {}
    for batch in BATCHES:
        for way, (temperature, lured) in WAYS.items():
            scripted.lure, sampling = never if lured else None, Sampling(temperature=temperature, ignore_eos=True)
            found.setdefault(str(batch), {})[way] = _case(scripted, setup, known, (batch, sampling), config)
    return found


def _script(row: Row, setup: Setup) -> list[int]:
    value = next((value for value, valid in row.tests if valid), None)
    return setup.open_spelling("").encode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))[:LONGEST]


def _case(
    model: Scripted,
    setup: Setup,
    known: Sequence[tuple[Constraint, list[int]]],
    asked: tuple[int, Sampling],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    batch, settings = asked
    plain, held = (_engine(model, setup, batch, config) for _ in range(2))
    free, bound, ratios = list[float](), list[float](), list[float]()
    for number, (wish, script) in enumerate(known):
        model.script = script
        sampling = replace(settings, max_tokens=len(script))
        try:
            for _ in range(batch):
                held.add(PROMPT, replace(sampling, constraint=wish))
                plain.add(PROMPT, sampling)
        except RequestError:
            _drain(plain, held)
            continue
        own = _in_turn(plain, held, number % 2)
        free, bound = [*free, *(a for a, _ in own)], [*bound, *(b for _, b in own)]
        ratios.append(sum(b for _, b in own) / sum(a for a, _ in own))
    return {
        "steps": len(free),
        "plain_ms": quantile(free, 0.5),
        "held_ms": quantile(bound, 0.5),
        "held_p99_ms": quantile(bound, 0.99),
        "plain_p99_ms": quantile(free, 0.99),
        "added": quantile([b / a - 1 for a, b in zip(free, bound, strict=True)], 0.5),
        "added_all": sum(bound) / max(sum(free), 1e-9) - 1,
        "added_by_schema": [quantile([ratio - 1 for ratio in ratios], share) for share in (0.0, 0.5, 1.0)],
    }


def _engine(model: Model, setup: Setup, batch: int, config: Mapping[str, Any]) -> Engine:
    given = {name: value for name, value in config.items() if name not in ("model", "drafter", "planner")}
    chosen, _ = Config.parse(**{**given, "drafter": "none", "max_requests": batch, "profiles": "off"})
    own = replace(setup_for(chosen, model), vocab=setup.vocab, open_spelling=setup.open_spelling)
    return assemble(choose_all(chosen, {}, None), chosen, model, own, lambda tokens: "x" * len(tokens))


def _in_turn(plain: Engine, held: Engine, first: int) -> list[tuple[float, float]]:
    """Milliseconds of each step after the prompt, of both, until one of them is done; who begins changes."""
    for engine in (plain, held):
        engine.step()  # the prompt, and what is made at first use
    found: list[tuple[float, float]] = []
    while plain.busy and held.busy:
        pair = [0.0, 0.0]
        for which in ((0, 1), (1, 0))[(first + len(found)) % 2]:
            began = perf_counter()
            (plain, held)[which].step()
            pair[which] = 1e3 * (perf_counter() - began)
        found.append((pair[0], pair[1]))
    _drain(plain, held)
    return found[:-1]  # the last one ends requests


def _drain(*engines: Engine) -> None:
    for engine in engines:
        for number in list(engine.requests):
            engine.abort(number)
        engine.step()
