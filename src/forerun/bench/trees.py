"""`forerun bench trees`: tokens per step of every tree at equal budgets of nodes, on one target and its drafter.

Acceptance is measured on some prompts, for the trees that are made of it; all trees then run on others. A tree's
tokens per step stand beside the middle 95 % of resampled prompts, and so does its lead over one of them, which is at
first `static`, the best fixed tree by that measurement.
Does not: time anything. What a tree is worth is said at a price: its tokens per step over what a step costs, where the
target's pass costs 1 and each pass of the drafter `price`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import acceptance, machine, workloads
from forerun.bench.drive import generate
from forerun.bench.measure import CONVENTION
from forerun.bench.paper import paper
from forerun.bench.speedup import MAX_TOKENS, model_facts, open_plain
from forerun.bench.workloads import Item
from forerun.build import assemble, choose_all, setup_for
from forerun.config import Choice, choose
from forerun.drafters import DRAFTERS
from forerun.errors import ConfigError
from forerun.files import write_whole
from forerun.llm import LLM
from forerun.trees import TREES
from forerun.types import Floats, Output, Sampling, Work


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    categories: Sequence[str] = workloads.OWN
    prompts: int = 5  # per category; as many again are fitted on
    repeats: int = 1
    nodes: Sequence[int] = (8, 16)
    depth: int = 6
    price: float = 0.1
    trees: Sequence[str] = ()  # further ones, beside all in the table
    settings: Sequence[str] = ()  # whole drafters, at the same budgets
    only: bool = False  # not all in the table
    against: str = "static"  # the tree over which leads are counted
    save: Path | None = None  # where fitted tables are written
    data: Path | None = None


@dataclass(frozen=True)
class Count:
    """One prompt's run."""

    tokens: int
    steps: int
    drafted: int
    passes: int  # of the drafter


class Counted:
    """A drafter's runner that counts its passes."""

    def __init__(self, runner: Any) -> None:  # noqa: ANN401 - a Runner
        self.runner, self.cache, self.info, self.passes = runner, runner.cache, runner.info, 0

    @property
    def lends(self) -> bool:
        return bool(self.runner.lends)

    def follows(self, *, asks: bool) -> bool:
        return False

    @property
    def branches(self) -> bool:
        return False

    @property
    def aside(self) -> bool:
        return False

    def run(self, work: Sequence[Work]) -> list[Output]:
        self.passes += 1
        found: list[Output] = self.runner.run(work)
        return found


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    for table, spelled in ((TREES, (*order.trees, order.against)), (DRAFTERS, order.settings)):
        for one in spelled:
            choose(table, one)  # what is spelled wrong is refused before anything is measured
    drawn = Sampling(**{"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, **sampling})
    plain, notes = open_plain({**config, "max_requests": 2})
    prompts = workloads.load(order.categories, 2 * order.prompts, order.data)
    load = workloads.encode(prompts, plain.tokenizer, plain.engine.limits.context_length - (drawn.max_tokens or 1))
    known = [item for item in load.items if item.number > order.prompts]
    asked = [item for item in load.items if item.number <= order.prompts]
    if not known:
        raise ConfigError(f"no category has more than {order.prompts} prompts to fit on; lower --prompts.")
    raced = "Trees and drafters" if order.settings else "Trees"
    race = Race(plain, order, asked, drawn, {k: v for k, v in config.items() if k != "model"})
    traces = race.traces(known)
    tables = acceptance.tables(traces, greedy=drawn.greedy)
    with TemporaryDirectory() as folder:
        path = order.save or Path(folder) / "trees.json"
        write_whole(path, json.dumps(tables, indent=1).encode(), "name another file with --save")
        cases = [case for nodes in order.nodes for case in race.cases(nodes, path)]
    return {
        "title": f"{raced} at equal budgets, temperature {drawn.temperature:g}",
        "benchmark": "trees",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, None),
        "settings": {
            "depth": order.depth,
            "price": order.price,
            "prompts": len(asked),
            "fitted_on": len(known),
            "repeats": order.repeats,
            "sampling": asdict(drawn),
        },
        "convention": CONVENTION,
        "acceptance": tables,
        "calibration": acceptance.calibration(traces),
        "cases": cases,
        "notes": [*notes, *load.notes, *([] if drawn.greedy else acceptance.siblings(traces))],
    }


@dataclass(frozen=True)
class Race:
    """Trees that run on the same prompts."""

    plain: LLM
    order: Order
    items: Sequence[Item]
    sampling: Sampling
    config: dict[str, Any]

    def traces(self, items: Sequence[Item]) -> list[acceptance.Trace]:
        """What both models say along the target's texts."""
        _, (second,) = self._llm(self._grown("chain"), 1)
        return [acceptance.trace(self.plain, second.runner, item, self._seeded(item, 0)) for item in items]

    def cases(self, nodes: int, path: Path) -> list[dict[str, Any]]:
        """One per tree at one budget."""
        trees = list(dict.fromkeys([self.order.against, *([] if self.order.only else TREES), *self.order.trees]))
        entrants = {tree: self._grown(_with_file(choose(TREES, tree), path).spelling) for tree in trees}
        entrants |= {drafter: drafter for drafter in self.order.settings}
        each = track(entrants.items(), f"{nodes} nodes", console=Console(stderr=True))
        counts = {name: self._counts(drafter, nodes) for name, drafter in each}
        return [{"tree": t, "nodes": nodes, **self._figures(c, counts[self.order.against])} for t, c in counts.items()]

    def _counts(self, drafter: str, nodes: int) -> list[list[Count]]:
        """Per prompt, every repeat."""
        llm, small = self._llm(drafter, nodes)
        found = []
        for item in self.items:
            runs = []
            for repeat in range(self.order.repeats):
                before, sampling = sum(one.passes for one in small), self._seeded(item, repeat)
                stats = generate(llm, [item.tokens], [sampling]).stats
                passes = sum(one.passes for one in small) - before
                runs.append(Count(stats.tokens, stats.steps, stats.drafted, passes))
            found.append(runs)
        return found

    def _grown(self, tree: str) -> str:
        return f"draft-model:depth={self.order.depth},tree=({tree})"

    def _llm(self, drafter: str, nodes: int) -> tuple[LLM, list[Counted]]:
        """An engine, and the small models that its drafter opened."""
        own = {**self.config, "drafter": drafter, "planner": f"fixed:nodes={nodes}"}
        llm, opened = LLM(self.plain.model, self.plain.tokenizer, **own), list[Counted]()
        setup = setup_for(llm.config, llm.model, llm.tokenizer)

        def open_model(folder: str, cache: str, dtype: str) -> Any:  # noqa: ANN401 - a Runner
            opened.append(Counted(setup.open_model(folder, cache, dtype)))
            return opened[-1]

        choices = choose_all(llm.config, {}, llm.model.info.companion)
        watched = replace(setup, open_model=open_model)
        llm.engine = assemble(choices, llm.config, llm.model, watched, llm.tokenizer.decode)
        return llm, opened

    def _seeded(self, item: Item, repeat: int) -> Sampling:
        return replace(self.sampling, seed=(self.sampling.seed or 0) + 1000 * repeat + item.number)

    def _figures(self, counts: Sequence[Sequence[Count]], against: Sequence[Sequence[Count]]) -> dict[str, Any]:
        mine, theirs = _totals(counts), _totals(against)
        drawn = np.random.default_rng(0).integers(len(mine), size=(acceptance.RESAMPLES, len(mine)))
        tokens, steps, drafted, passes = mine.sum(0)
        return {
            "tokens_per_step": _spread(_rate(mine.sum(0)), _rate(mine[drawn].sum(1))),
            "lead": _spread(
                _rate(mine.sum(0)) - _rate(theirs.sum(0)), _rate(mine[drawn].sum(1)) - _rate(theirs[drawn].sum(1))
            ),
            "nodes_per_step": float(drafted / steps),
            "passes_per_step": float(passes / steps),
            "worth": float(tokens / (steps + self.order.price * passes)),
            "categories": {
                category: float(_rate(mine[[i.category == category for i in self.items]].sum(0)))
                for category in dict.fromkeys(item.category for item in self.items)
            },
        }


def _with_file(choice: Choice, path: Path) -> Choice:
    """The tree, made of what was measured where it can be and no other file is named."""
    options = choice.options
    if any(f.name == "file" for f in fields(options)) and not options.file:
        return replace(choice, options=replace(options, file=str(path)))
    return choice


def _totals(counts: Sequence[Sequence[Count]]) -> Floats:
    """Tokens, steps, drafted nodes and passes of every prompt [prompts, 4]."""
    found: Floats = np.array([[[c.tokens, c.steps, c.drafted, c.passes] for c in runs] for runs in counts], float).sum(
        1
    )
    return found


def _rate(totals: Floats) -> Any:  # noqa: ANN401 - a number, or one per row
    """Tokens per step."""
    return totals[..., 0] / totals[..., 1]


def _spread(value: float, resampled: Floats) -> dict[str, float]:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {"value": float(value), "low": float(low), "high": float(high)}


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    worth, lead = f"worth at {report['settings']['price']:g}", f"over {report['cases'][0]['tree']}"
    for name in ("tree", "budget", "tokens/step", lead, "nodes/step", "passes/step", worth):
        table.add_column(name, justify="left" if name == "tree" else "right")
    for case in report["cases"]:
        both = [shown(case[name], sign) for name, sign in (("tokens_per_step", ""), ("lead", "+"))]
        rest = [f"{case[name]:.2f}" for name in ("nodes_per_step", "passes_per_step", "worth")]
        table.add_row(case["tree"], str(case["nodes"]), *both, *rest)
    paper().print(table)


def shown(spread: dict[str, float], sign: str = "") -> str:
    """A figure and the middle 95 % of resampled prompts."""
    value, low, high = (f"{spread[name]:{sign}.2f}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
