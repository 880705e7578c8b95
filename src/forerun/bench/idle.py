"""`forerun bench idle`: what a drafter costs in a step in which it has nothing to offer.

A text of random tokens is drafted for, one token in every step, with rows of random logits and hidden states: nothing
repeats and nothing was ever said before, so no draft comes true. The whole life of a request counts: start, proposals,
observations, stop. Microseconds are the processor's own, of this thread, beside their share of a step.
Does not: run a target; count what nodes cost in its pass, which is the planner's to avoid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import thread_time_ns
from typing import Any

import numpy as np
import torch
from rich.table import Table

from forerun.bench import machine
from forerun.bench.drafts import free
from forerun.bench.figures import quantile
from forerun.bench.overhead import Stub
from forerun.bench.paper import paper
from forerun.bench.replay import Tally, judged
from forerun.build import setup_for
from forerun.config import Config, choose
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import Drafter
from forerun.errors import ForerunError
from forerun.kernels import native
from forerun.models.contract import ModelInfo
from forerun.models.tokenizer import Tokenizer
from forerun.rng import CounterRng
from forerun.types import Context, Draft, KVLayout, Output, Sampling

HIDDEN, LAYERS, CONTEXT = 320, 7, 1024  # of the bundled target, whose tokenizer it is
PROMPT = 64
STEPS_MS = (1.0, 13.0)  # the bundled target's, and one of 350 million parameters, on two cores
_NOTHING = Draft()


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    drafters: Sequence[str] = ()  # none: all that need neither a second model nor training
    tokens: int = 512  # of a text
    rounds: int = 7
    nodes: int = 8


class Rows:
    """Random rows as a target would give them."""

    def __init__(self, vocab: int, count: int = 256) -> None:
        self.logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(0))
        peaks = self.logits.max(-1)
        self.best, self.peak = tuple(peaks.indices.tolist()), tuple(peaks.values.tolist())
        self.mass = tuple((self.logits - peaks.values[:, None]).exp().sum(-1).tolist())
        self.hidden = torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(1))

    def output(self, step: int, rows: int, layers: Sequence[int], width: int) -> Output:
        """Other rows in every step."""
        of = slice(first := step % (len(self.best) - max(rows, width)), first + rows)
        hidden = dict.fromkeys(layers, self.hidden[first : first + width])
        return Output(self.logits[of], self.best[of], self.peak[of], self.mass[of], hidden)


def life(drafter: Drafter, number: int, order: Order, vocab: int, rows: Rows) -> Tally:
    """One request, from start to stop."""
    text = tuple(np.random.default_rng(number).integers(0, vocab, PROMPT + order.tokens).tolist())
    tokens, tally = list(text[:PROMPT]), Tally(texts=1, tokens=order.tokens)
    context = Context(number, tokens, PROMPT, Sampling(temperature=0), CounterRng(number), scope=str(number))
    began = thread_time_ns()
    context = replace(context, state=drafter.start(context))
    tally.propose_ns += thread_time_ns() - began
    pending = text[:PROMPT]
    for step in range(order.tokens - order.nodes):
        context.rng.begin(step, len(tokens))
        began = thread_time_ns()
        draft = drafter.propose([context], [order.nodes])[0] if step else _NOTHING
        tally.propose_ns += thread_time_ns() - began
        outcome = judged(draft, text, len(tokens), pending)
        output = rows.output(step, len(outcome.work.logits), drafter.hidden, len(outcome.work.tokens))
        began = thread_time_ns()
        drafter.observe([context], [outcome._replace(output=output)])
        tally.observe_ns += thread_time_ns() - began
        tally.steps, tally.nodes = tally.steps + 1, tally.nodes + len(draft)
        pending = text[len(tokens) : len(tokens) + 1]
        tokens.extend(pending)
    began = thread_time_ns()
    drafter.stop(context)
    tally.observe_ns += thread_time_ns() - began
    return tally


def run(order: Order) -> dict[str, Any]:
    """Every drafter."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_folder(Config.model)
    stub, vocab = Stub(), tokenizer.vocab_size
    layout = KVLayout((1,), (1,), torch.float32, torch.device("cpu"))
    stub.info = ModelInfo("stub", vocab, CONTEXT, HIDDEN, LAYERS, layout)
    setup, rows, cases, left_out = (
        setup_for(Config(), stub, tokenizer),
        Rows(vocab),
        list[dict[str, Any]](),
        list[str](),
    )
    for spelled in order.drafters or free():
        try:
            choice = choose(DRAFTERS, spelled)
            drafter: Drafter = choice.member(choice.options, setup)
            lives = [life(drafter, number, order, vocab, rows) for number in range(order.rounds)]
        except ForerunError as problem:
            left_out.append(f"Left out: {problem}")
            continue
        cases.append({"drafter": spelled, **_figures(lives)})
    return {
        "title": "A drafter that has nothing to offer, µs per step",
        "benchmark": "idle",
        **machine.circumstances(),
        "machine": machine.facts(),
        "kernels": native.describe(),
        "settings": {"tokens": order.tokens, "rounds": order.rounds, "nodes": order.nodes, "vocabulary": vocab},
        "steps_ms": STEPS_MS,
        "cases": cases,
        "notes": left_out,
    }


def _figures(lives: Sequence[Tally]) -> dict[str, Any]:
    """Medians over requests."""
    per_step = [life.figures() for life in lives]
    names = ("propose_us_per_step", "observe_us_per_step", "nodes_per_step")
    found = {name: quantile([figures[name] for figures in per_step], 0.5) for name in names}
    return {**found, "us_per_step": found["propose_us_per_step"] + found["observe_us_per_step"]}


def show(found: dict[str, Any]) -> None:
    """A table for people."""
    table = Table(title=found["title"], title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name == "drafter" else "right")
    for case in found["cases"]:
        table.add_row(*(cell.replace("[", "\\[") for cell in cells(case)))
    console = paper()
    console.print(table)
    for note in found["notes"]:
        console.print(note, markup=False)


HEADER = ("drafter", "µs", "propose + observe", "nodes", *(f"of {step:g} ms" for step in STEPS_MS))


def cells(case: dict[str, Any]) -> tuple[str, ...]:
    """One row below HEADER."""
    whole = case["us_per_step"]
    return (
        case["drafter"],
        f"{whole:.1f}",
        f"{case['propose_us_per_step']:.1f} + {case['observe_us_per_step']:.1f}",
        f"{case['nodes_per_step']:.1f}",
        *(f"{1e-3 * whole / step:.1%}" for step in STEPS_MS),
    )
