"""`forerun bench choices`: who should draft? Drafters beside each other, by category of prompts and on a mixture.

Counts decide, as in `forerun bench planners`: real models draft and accept, and time is that of a table, so that the
same command brings the same figures anywhere. A pass of a small model takes `price` passes of the target over one row,
and asking anybody `LOOKUP`. In the mixture requests of all categories come in a drawn order, through one engine that
stays; in a category those of that category alone. What a drafter loses is counted against the best of all in hindsight.
Does not: charge for reading prompts; let several requests run together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.measure import CONVENTION
from forerun.bench.planners import COSTS, MAX_TOKENS, ratio
from forerun.bench.replay import ALL
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.trees import Counted, shown
from forerun.bench.workloads import Item
from forerun.build import assemble, choose_all, setup_for
from forerun.config import choose
from forerun.drafters import DRAFTERS
from forerun.engine.stats import RequestStats
from forerun.llm import LLM
from forerun.testing.toy import modelled
from forerun.types import Floats, Runner, Sampling

LOOKUP = 0.003  # of a pass: forty microseconds of Python beside 13 ms
USUAL = (
    "ngram",
    "draft-model:depth=4",
    "several:of=[ngram,(draft-model:depth=4)]",
    "bandit:of=[ngram,(draft-model:depth=4)],prices=[0.003,0.2]",
)
COPY = "copy"  # prompts that have begun to repeat themselves


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    drafters: Sequence[str] = USUAL
    categories: Sequence[str] = workloads.OWN
    prompts: int = 8  # per category
    repeats: int = 5  # orders of the requests
    price: float = 0.05
    data: Path | None = None


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    for drafter in order.drafters:
        choose(DRAFTERS, drafter)  # what is spelled wrong is refused before anything is measured
    own = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, "ignore_eos": True}
    drawn, keywords = Sampling(**{**own, **sampling}), {"planner": "fixed:nodes=8", **config, "max_requests": 1}
    prompts = workloads.load(order.categories, order.prompts, order.data)
    plain, notes = open_plain(keywords)
    load = workloads.encode(prompts, plain.tokenizer, plain.engine.limits.context_length // 2 - (drawn.max_tokens or 1))
    keywords = {name: value for name, value in keywords.items() if name not in ("model", "drafter")}
    trial = Trial(plain, order, (*load.items, *copying(load.items)), drawn, keywords)
    return {
        "title": f"Who drafts, temperature {drawn.temperature:g}",
        "benchmark": "choices",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, None),
        "settings": {
            "planner": keywords["planner"],
            "price": order.price,
            "lookup": LOOKUP,
            "costs": dict(zip(COSTS.rows, COSTS.seconds, strict=True)),
            "prompts": len(trial.items),
            "repeats": order.repeats,
            "sampling": asdict(drawn),
        },
        "convention": CONVENTION,
        "cases": list(trial.cases()),
        "notes": [*notes, *load.notes],
    }


def copying(items: Sequence[Item]) -> Iterator[Item]:
    """The prompts once more, each twice in a row but for its last third."""
    for number, item in enumerate(items[::3], 1):
        yield Item(COPY, number, (*item.tokens, *item.tokens[: 2 * len(item.tokens) // 3]))


@dataclass(frozen=True)
class Trial:
    """Drafters that serve the same lines of requests."""

    plain: LLM
    order: Order
    items: Sequence[Item]
    sampling: Sampling
    keywords: dict[str, Any]

    def cases(self) -> Iterator[dict[str, Any]]:
        """One per drafter and category, and on the mixture of all."""
        for category in (*dict.fromkeys(item.category for item in self.items), ALL):
            lines = [self.line(category, repeat) for repeat in range(self.order.repeats)]
            bar = track(self.order.drafters, category, console=Console(stderr=True))
            counts = {drafter: [self.count(drafter, line) for line in lines] for drafter in bar}
            rates = {drafter: np.array([rate for rate, _ in found]) for drafter, found in counts.items()}
            yield from self._compared(category, counts, rates)

    def _compared(self, category: str, counts: dict[str, Any], rates: dict[str, Floats]) -> Iterator[dict[str, Any]]:
        plain = 1 / COSTS.of(1)
        best = max(rates, key=lambda drafter: float(rates[drafter].mean()))
        for drafter, found in counts.items():
            stats = RequestStats()
            for _, one in found:
                stats.add(one)
            yield {
                "category": category,
                "drafter": drafter,
                "tokens_per_step": stats.tokens_per_step,
                "rates": rates[drafter].tolist(),
                "over_plain": ratio(rates[drafter], np.full(len(found), plain)),
                "over_best": {"drafter": best, **ratio(rates[drafter], rates[best])},
                "sources": dict(stats.sources),
            }

    def line(self, category: str, repeat: int) -> list[tuple[Item, Sampling]]:
        """Requests of a category, or of all, in a drawn order, each with a seed."""
        items = [item for item in self.items if category in (item.category, ALL)]
        order, first = np.random.default_rng(repeat).permutation(len(items)), (self.sampling.seed or 0) + 1000 * repeat
        return [(items[at], replace(self.sampling, seed=first + i)) for i, at in enumerate(order.tolist())]

    def count(self, drafter: str, line: Sequence[tuple[Item, Sampling]]) -> tuple[float, RequestStats]:
        """Serve a line, one request at a time: tokens per second by the table, and what was counted."""
        llm = LLM(self.plain.model, self.plain.tokenizer, **self.keywords, drafter=drafter)
        choices, setup = choose_all(llm.config, {}, None), setup_for(llm.config, llm.model, llm.tokenizer)
        small, price = list[Counted](), self.order.price * COSTS.of(1)

        def open_model(folder: str, cache: str, dtype: str) -> Runner:
            small.append(Counted(setup.open_model(folder, cache, dtype)))
            return small[-1]

        def meter() -> float:
            seconds = LOOKUP * COSTS.of(1) + price * sum(one.passes for one in small)
            for one in small:
                one.passes = 0
            return seconds

        told = replace(choices, planner=modelled(choices.planner, COSTS, 0.0, meter))
        watched = replace(setup, open_model=open_model)
        llm.engine = assemble(told, llm.config, llm.model, watched, llm.tokenizer.decode)
        stats, clock = RequestStats(), llm.engine.members.planner
        for item, sampling in line:
            llm.engine.add(item.tokens, sampling)
            while llm.engine.busy:
                for event in llm.engine.step():
                    if event.stats is not None:
                        stats.add(event.stats)
        return stats.tokens / clock.seconds, stats  # type: ignore[attr-defined]


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("category", "drafter", "tokens/step", "over plain", "over the best"):
        table.add_column(name, justify="left" if name in ("category", "drafter") else "right")
    for case in report["cases"]:
        names = case["category"], case["drafter"].replace("[", "\\[")
        table.add_row(*names, f"{case['tokens_per_step']:.2f}", shown(case["over_plain"]), shown(case["over_best"]))
    Console(width=None if Console().is_terminal else 140, highlight=False).print(table)
