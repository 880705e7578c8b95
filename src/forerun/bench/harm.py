"""`forerun bench harm`: what planners lose where drafting is of no use, against plain decoding.

Time is that of the table of `forerun bench planners`. `wrong`: the prompts' texts, and a drafter that guesses at random
as many tokens as it may. `random`: random prompts that go on nearly at random, and the usual drafter. Each at several
prices of a level of drafts, from nothing to a third of a pass. All requests are new: what a planner pays to find out is
in the figures.
Does not: know what a drafter costs that hangs or fails; `engine/guard.py` sees to that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, planners, workloads
from forerun.bench.measure import CONVENTION
from forerun.bench.paper import paper
from forerun.bench.planners import COSTS, PLAIN, Match, ratio
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.trees import shown
from forerun.bench.workloads import Item
from forerun.config import Choice, choose
from forerun.planners import PLANNERS
from forerun.testing.toy import WrongDrafter
from forerun.types import Sampling

HOT = 3.0  # the temperature of random texts
LENGTH = 32  # of random prompts
WRONG = Choice("drafter", "wrong", WrongDrafter, WrongDrafter.Options())


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    categories: Sequence[str] = workloads.OWN
    prompts: int = 8  # per category
    repeats: int = 5  # orders of the requests
    batches: Sequence[int] = (1, 4, 16)
    prices: Sequence[float] = (0.0, 0.05, 0.3)
    settings: Sequence[str] = ("auto",)  # planners
    data: Path | None = None


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    for planner in order.settings:
        choose(PLANNERS, planner)  # what is spelled wrong is refused before anything is measured
    own = {"temperature": 0.0, "max_tokens": planners.MAX_TOKENS, "seed": 0, "ignore_eos": True}
    drawn, keywords = Sampling(**{**own, **sampling}), {"drafter": planners.DRAFTER, **config}
    prompts = workloads.load(order.categories, order.prompts, order.data)
    plain, notes = open_plain({**keywords, "max_requests": max(order.batches)})
    load = workloads.encode(prompts, plain.tokenizer, plain.engine.limits.context_length - (drawn.max_tokens or 1))
    keywords = {name: value for name, value in keywords.items() if name not in ("model", "planner")}
    usual = planners.Order(repeats=order.repeats, nodes=(), settings=order.settings, only=True)
    hot, noise = replace(drawn, temperature=HOT), list(random_prompts(len(load.items), plain.model.info.vocab_size))
    matches = {
        "wrong": Match(plain, usual, load.items, drawn, keywords, WRONG),
        "random": Match(plain, usual, noise, hot, keywords),
    }
    return {
        "title": "What planners lose where drafting is of no use",
        "benchmark": "harm",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, None),
        "settings": {
            "drafter": keywords["drafter"],
            "costs": dict(zip(COSTS.rows, COSTS.seconds, strict=True)),
            "prompts": len(load.items),
            "repeats": order.repeats,
            "sampling": asdict(drawn),
        },
        "convention": CONVENTION,
        "cases": [case for work, match in matches.items() for case in cases(order, work, match)],
        "notes": [*notes, *load.notes],
    }


def random_prompts(count: int, vocab: int) -> Iterator[Item]:
    """Prompts without any sense."""
    rng = np.random.default_rng(0)
    for number in range(1, count + 1):
        yield Item("random", number, tuple(rng.integers(vocab, size=LENGTH).tolist()))


def cases(order: Order, work: str, match: Match) -> Iterator[dict[str, Any]]:
    """One per size of the batch, price and planner."""
    for batch in track(order.batches, work, console=Console(stderr=True)):
        lines = [match.line(batch, repeat) for repeat in range(order.repeats)]
        plain = [match.count(PLAIN, batch, line) for line in lines]
        for price in order.prices:
            priced = replace(match, order=replace(match.order, price=price))
            for planner in order.settings:
                found = [priced.count(planner, batch, line) for line in lines]
                rates, others = (np.array([c.total.tokens / c.seconds for c in counts]) for counts in (found, plain))
                yield {
                    "work": work,
                    "batch": batch,
                    "price": price,
                    "planner": planner,
                    "nodes_per_step": sum(c.total.drafted for c in found) / sum(c.total.steps for c in found),
                    "accepted": sum(c.total.accepted for c in found) / max(sum(c.total.drafted for c in found), 1),
                    "over_plain": ratio(rates, others),
                }


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("work", "batch", "price", "planner", "nodes/step", "accepted", "over plain decoding"):
        table.add_column(name, justify="left" if name in ("work", "planner") else "right")
    for case in report["cases"]:
        names = case["work"], str(case["batch"]), f"{case['price']:g}", case["planner"]
        figures = f"{case['nodes_per_step']:.2f}", f"{case['accepted']:.0%}"
        table.add_row(*names, *figures, shown(case["over_plain"]))
    paper().print(table)
