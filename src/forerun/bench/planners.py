"""`forerun bench planners`: every planner beside fixed lengths and plain decoding, at several sizes of the batch.

Counts decide: real models draft and accept, and time is that of a table of what passes cost by their rows, so that the
same command brings the same figures anywhere. As many requests as `waves` batches wait in line, those of all categories
in a drawn order, which is the same for every planner. A planner's ratio to another is that of the same order, with the
middle 95 % of resampled orders. With `--inflate` the clock decides as well, at the cost of a bigger model.
Does not: charge for reading prompts; know what other machines' passes cost (the table is in the report).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import acceptance, machine, workloads
from forerun.bench.measure import CONVENTION, Entrant, Race, figures, groups
from forerun.bench.paper import paper
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.trees import shown
from forerun.bench.workloads import Item
from forerun.build import assemble, choose_all, setup_for
from forerun.config import Choice, choose
from forerun.engine.stats import RequestStats
from forerun.llm import LLM
from forerun.planners import PLANNERS
from forerun.testing.toy import Modelled, modelled
from forerun.types import Costs, Floats, Sampling

# 360M in int8: `forerun bench roofline`, docs/results; between and beyond the widths a straight line.
COSTS = Costs((1, 2, 4, 8, 16), (0.01272, 0.01351, 0.01501, 0.0166, 0.02088))
DRAFTER = "draft-model:depth=8"
PLAIN = "fixed:nodes=0"
MAX_TOKENS = 48


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    categories: Sequence[str] = workloads.OWN
    prompts: int = 8  # per category
    repeats: int = 3  # orders of the requests
    batches: Sequence[int] = (1, 4, 8, 16)
    nodes: Sequence[int] = (1, 2, 3, 4, 6, 8)  # fixed lengths
    settings: Sequence[str] = ()  # further planners
    only: bool = False  # not all in the table
    waves: int = 2  # batches that wait in line; few show how unequal requests leave the last passes half empty
    price: float = 0.05  # of a level of drafts, where the target's pass over one row costs 1
    inflate: str | None = None
    data: Path | None = None

    @property
    def spelled(self) -> list[str]:
        """Plain decoding, the fixed lengths, and the planners."""
        fixed = [f"fixed:nodes={k}" for k in self.nodes]
        return list(dict.fromkeys([PLAIN, *fixed, *([] if self.only else PLANNERS), *self.settings]))


@dataclass(frozen=True)
class Count:
    """One line of requests, written to its end."""

    seconds: float  # by the table
    stats: dict[str, RequestStats]  # by category

    @property
    def total(self) -> RequestStats:
        """Of all categories."""
        found = RequestStats()
        for stats in self.stats.values():
            found.add(stats)
        return found


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    for planner in order.spelled:
        choose(PLANNERS, planner)  # what is spelled wrong is refused before anything is measured
    own = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, "ignore_eos": True}
    drawn, keywords = Sampling(**{**own, **sampling}), {"drafter": DRAFTER, **config}
    prompts = workloads.load(order.categories, order.prompts, order.data)
    plain, notes = open_plain({**keywords, "max_requests": max(order.batches)}, order.inflate)
    load = workloads.encode(prompts, plain.tokenizer, plain.engine.limits.context_length - (drawn.max_tokens or 1))
    keywords = {name: value for name, value in keywords.items() if name not in ("model", "planner")}
    match = Match(plain, order, load.items, drawn, keywords)
    return {
        "title": f"Planners beside fixed lengths, temperature {drawn.temperature:g}",
        "benchmark": "planners",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, order.inflate),
        "settings": {
            "drafter": keywords["drafter"],
            "price": order.price,
            "costs": dict(zip(COSTS.rows, COSTS.seconds, strict=True)),
            "prompts": len(load.items),
            "repeats": order.repeats,
            "waves": order.waves,
            "sampling": asdict(drawn),
        },
        "convention": CONVENTION,
        "cases": [case for batch in order.batches for case in match.cases(batch)],
        "notes": [*notes, *load.notes],
    }


@dataclass(frozen=True)
class Match:
    """Planners that serve the same lines of requests."""

    plain: LLM
    order: Order
    items: Sequence[Item]
    sampling: Sampling
    keywords: dict[str, Any]
    drafter: Choice | None = None  # in place of the one that the keywords name

    def cases(self, batch: int) -> list[dict[str, Any]]:
        """One per planner; ratios to plain decoding and to the best of the fixed lengths."""
        lines = [self.line(batch, repeat) for repeat in range(self.order.repeats)]
        bar = track(self.order.spelled, f"batch of {batch}", console=Console(stderr=True))
        counts = {planner: [self.count(planner, batch, line) for line in lines] for planner in bar}
        rates = {planner: np.array([c.total.tokens / c.seconds for c in found]) for planner, found in counts.items()}
        best = max((f"fixed:nodes={k}" for k in self.order.nodes), key=lambda name: float(rates[name].mean()))
        timed = dict(self.timed(batch)) if self.order.inflate else {}
        return [
            {
                "batch": batch,
                "planner": planner,
                **_figures(found),
                "rates": rates[planner].tolist(),
                "over_plain": ratio(rates[planner], rates[PLAIN]),
                "over_best": {"fixed": best, **ratio(rates[planner], rates[best])},
                "timed": timed.get(planner),
            }
            for planner, found in counts.items()
        ]

    def line(self, batch: int, repeat: int) -> list[tuple[Item, Sampling]]:
        """Requests in a drawn order, each with a seed."""
        rng = np.random.default_rng((batch, repeat))
        count, places = max(self.order.waves * batch, len(self.items) // 2), list[int]()
        while len(places) < count:
            places += rng.permutation(len(self.items)).tolist()
        first = (self.sampling.seed or 0) + 1000 * repeat
        return [(self.items[at], replace(self.sampling, seed=first + i)) for i, at in enumerate(places[:count])]

    def count(self, planner: str, batch: int, line: Sequence[tuple[Item, Sampling]]) -> Count:
        """Serve a line, `batch` requests at a time."""
        clock, llm = self.clocked(planner, batch)
        engine, numbers, stats = llm.engine, dict[int, str](), dict[str, RequestStats]()
        for item, sampling in line:
            numbers[engine.add(item.tokens, sampling)] = item.category
        while engine.busy:
            for event in engine.step():
                if event.stats is not None:
                    stats.setdefault(numbers[event.request], RequestStats()).add(event.stats)
        return Count(clock.seconds, stats)

    def clocked(self, planner: str, batch: int) -> tuple[Modelled, LLM]:
        """An engine whose planner is told times by the table, and who tells them."""
        llm = self._llm(PLAIN, batch)  # no other, which might measure what passes cost
        choices = choose_all(llm.config, {}, llm.model.info.companion)
        told = modelled(choose(PLANNERS, planner), COSTS, self.order.price * COSTS.of(1))
        setup = setup_for(llm.config, llm.model, llm.tokenizer)
        choices = replace(choices, planner=told, drafter=self.drafter or choices.drafter)
        llm.engine = assemble(choices, llm.config, llm.model, setup, llm.tokenizer.decode)
        clock: Any = llm.engine.members.planner
        return clock, llm

    def timed(self, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Tokens per second and the ratio to plain decoding, by the clock, in turns."""
        spelled = self.order.spelled
        runners = [Entrant(name, self._llm(name, batch), compares=False, why="counted above") for name in spelled]
        mixed = [replace(item, category="mixed") for item, _ in self.line(batch, 0)]
        race = Race(runners, groups(mixed, batch), self.sampling, self.order.repeats)
        for name, rows in figures(race, race.trials(), []).items():
            yield name, {key: rows["mixed"][key] for key in ("tokens_per_second", "speedup", "ms_per_step")}

    def _llm(self, planner: str, batch: int) -> LLM:
        own = {**self.keywords, "planner": planner, "max_requests": batch}
        return LLM(self.plain.model, self.plain.tokenizer, **own)


def _figures(counts: Sequence[Count]) -> dict[str, Any]:
    totals = RequestStats()
    by_category = dict[str, RequestStats]()
    for count in counts:
        totals.add(count.total)
        for category, stats in count.stats.items():
            by_category.setdefault(category, RequestStats()).add(stats)
    return {
        "tokens_per_step": totals.tokens_per_step,
        "nodes_per_step": totals.drafted / totals.steps,
        "accepted": totals.acceptance_rate,
        "categories": {name: by_category[name].tokens_per_step for name in sorted(by_category)},
    }


def ratio(rates: Floats, others: Floats) -> dict[str, float]:
    """The mean of paired ratios, and the middle 95 % of resampled pairs."""
    pairs = rates / others
    drawn = np.random.default_rng(0).integers(len(pairs), size=(acceptance.RESAMPLES, len(pairs)))
    low, high = np.quantile(pairs[drawn].mean(1), [0.025, 0.975])
    return {"value": float(pairs.mean()), "low": float(low), "high": float(high)}


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("batch", "planner", "tokens/step", "nodes/step", "over plain", "over best fixed", "by the clock"):
        table.add_column(name, justify="left" if name == "planner" else "right")
    for case in report["cases"]:
        timed, best = case["timed"], case["over_best"]
        numbers = [f"{case[name]:.2f}" for name in ("tokens_per_step", "nodes_per_step")]
        clock = f"{timed['speedup']['median']:.2f}" if timed else "–"
        ratios = [shown(case["over_plain"]), f"{shown(best)} {best['fixed']}"]
        table.add_row(str(case["batch"]), case["planner"], *numbers, *ratios, clock)
    paper().print(table)
