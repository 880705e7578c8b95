"""`forerun bench lockstep`: engines that keep so many requests running, some steps of each in turn, by the clock.

All of them meet the same hour, so they are told apart to a hundredth where whole runs of one engine differ by a tenth.
Who ends is followed by the next prompt at once, and lengths differ; what a planner pays to find out counts. A second
plain engine says what equals differ by.
Does not: leave the processor's caches as an engine alone would: all share the model's weights, but little else.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.paper import paper
from forerun.bench.planners import ratio
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.trees import shown
from forerun.bench.workloads import Item
from forerun.config import choose
from forerun.llm import LLM
from forerun.planners import PLANNERS
from forerun.types import Floats, Sampling

PLAIN, AGAIN = "plain", "plain again"
MAX_TOKENS = 96
TURN = 16  # steps of an engine before those of the next: what grows behind a step may hold up whoever follows it
STRETCHES = 32  # whose ratios say how sure the mean is
_STRIDE = 37  # from one request's length to the next one's, so that they end one by one


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    requests: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)  # that run at a time
    settings: Sequence[str] = ("auto",)  # planners
    steps: int = 1024  # of every engine
    prompts: int = 16  # per category
    categories: Sequence[str] = workloads.OWN
    data: Path | None = None


@dataclass
class Entrant:
    """One engine, which is never without requests."""

    llm: LLM
    items: Sequence[Item]
    sampling: Sampling
    requests: int
    asked: int = 0
    tokens: list[int] = field(default_factory=list)  # of every step
    seconds: list[float] = field(default_factory=list)

    def step(self) -> None:
        """One step, and what it wrote."""
        engine = self.llm.engine
        while len(engine.requests) < self.requests:
            self._ask()
        began = perf_counter()
        events = engine.step()
        self.seconds.append(perf_counter() - began)
        self.tokens.append(sum(len(event.emissions) for event in events))

    @property
    def rates(self) -> Floats:
        """Tokens per second of every stretch."""
        parts = zip(*(np.array_split(all_of, STRETCHES) for all_of in (self.tokens, self.seconds)), strict=True)
        return np.array([tokens.sum() / seconds.sum() for tokens, seconds in parts if len(tokens)])

    def _ask(self) -> None:
        """The next prompt, for a length from a half to three halves of what was asked for."""
        most = self.sampling.max_tokens or MAX_TOKENS
        length = max(most // 2 + self.asked * _STRIDE % most, 1)
        self.llm.engine.add(self.items[self.asked % len(self.items)].tokens, replace(self.sampling, max_tokens=length))
        self.asked += 1


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    for planner in order.settings:
        choose(PLANNERS, planner)  # what is spelled wrong is refused before anything is measured
    own = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, "ignore_eos": True}
    drawn, keywords = Sampling(**{**own, **sampling}), {"drafter": "draft-model", **config}
    plain, notes = open_plain(keywords)
    room = plain.engine.limits.context_length - 2 * (drawn.max_tokens or MAX_TOKENS)
    load = workloads.encode(workloads.load(order.categories, order.prompts, order.data), plain.tokenizer, room)
    keywords = {name: value for name, value in keywords.items() if name not in ("model", "planner")}
    return {
        "title": "Engines that step in turn",
        "benchmark": "lockstep",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, None),
        "settings": {
            "drafter": keywords["drafter"],
            "steps": order.steps,
            "prompts": len(load.items),
            "sampling": asdict(drawn),
        },
        "cases": [
            case
            for count in track(order.requests, "requests", console=Console(stderr=True))
            for case in cases(order, count, plain, keywords, (load.items, drawn))
        ],
        "notes": [*notes, *load.notes],
    }


def cases(
    order: Order, count: int, plain: LLM, keywords: dict[str, Any], asked: tuple[Sequence[Item], Sampling]
) -> list[dict[str, Any]]:
    """So many requests at a time: every planner beside plain decoding."""
    own = {**keywords, "max_requests": count}
    bare = {**own, "drafter": "none", "decoder": "autoregressive"}
    kinds = {PLAIN: bare, **{name: {**own, "planner": name} for name in order.settings}, AGAIN: bare}
    entrants = {
        name: Entrant(LLM(plain.model, plain.tokenizer, **kind), *asked, requests=count) for name, kind in kinds.items()
    }
    names = list(entrants)
    for number, begun in enumerate(range(0, order.steps, TURN)):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            for _ in range(min(TURN, order.steps - begun)):
                entrants[name].step()
    return [
        {
            "requests": count,
            "planner": name,
            "tokens_per_step": sum(one.tokens) / (order.steps * count),
            "ms_per_step": 1e3 * sum(one.seconds) / order.steps,
            "over_plain": ratio(one.rates, entrants[PLAIN].rates),
        }
        for name, one in entrants.items()
        if name != PLAIN
    ]


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("requests", "planner", "tokens/step", "ms/step", "over plain decoding"):
        table.add_column(name, justify="left" if name == "planner" else "right")
    for case in report["cases"]:
        figures = f"{case['tokens_per_step']:.2f}", f"{case['ms_per_step']:.2f}"
        table.add_row(str(case["requests"]), case["planner"], *figures, shown(case["over_plain"]))
    paper().print(table)
