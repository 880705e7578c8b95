"""`forerun bench choices`: who should draft? Drafters beside each other, by category of texts and on a mixture of all.

The target writes each text once, greedily; drafters are then asked along the texts, as in `forerun replay`, and time is
that of a table, so that the same command brings the same figures anywhere: a pass costs what `forerun bench planners`
says, a pass of a small model `price` of one over one row, asking anybody `LOOKUP` of it. `copy` is texts that were
read before, with other tokens here and there. In the mixture texts of all categories come in a drawn order to one
drafter, which keeps what it learns. The best of all is known in hindsight only.
Does not: sample; charge for reading prompts; let several requests run together; suit drafters that remember texts, of
which some come twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.drive import generate
from forerun.bench.measure import CONVENTION
from forerun.bench.paper import paper
from forerun.bench.planners import COSTS, ratio
from forerun.bench.replay import ALL, Record, replay
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.trees import Counted, shown
from forerun.bench.workloads import Item
from forerun.build import setup_for
from forerun.config import choose
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.types import Context, Draft, Floats, Need, Outcome, Sampling, Setup

NODES = 8  # of a draft, at most
LOOKUP = 0.003  # of a pass: forty microseconds of Python beside 13 ms
MAX_TOKENS = 96
COPY, CHANGED = "copy", 12  # every so manieth token is another one
USUAL = (
    "none",
    "ngram",
    "draft-model:depth=4",
    "bandit:of=[ngram,(draft-model:depth=4)],prices=[0.003,0.2]",
)
_UNKNOWN = frozenset({Need.LOGITS, Need.HIDDEN_STATES})


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    drafters: Sequence[str] = USUAL
    categories: Sequence[str] = workloads.OWN
    prompts: int = 8  # per category
    repeats: int = 10  # orders of the texts
    price: float = 0.05
    data: Path | None = None


def run(order: Order, config: dict[str, Any], sampling: dict[str, Any]) -> dict[str, Any]:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    for drafter in order.drafters:
        unknown = sorted(choose(DRAFTERS, drafter).member.facts.needs & _UNKNOWN)
        if unknown:
            message = f"drafter {drafter!r} looks at the target's {' and '.join(unknown)}, which texts do not hold"
            raise ConfigError(f"{message}; measure it with forerun bench.")
    drawn = Sampling(**{"max_tokens": MAX_TOKENS, "seed": 0, "ignore_eos": True, **sampling, "temperature": 0.0})
    prompts = workloads.load(order.categories, order.prompts, order.data)
    plain, notes = open_plain({**config, "max_requests": 1})
    room = plain.engine.limits.context_length // 2 - (drawn.max_tokens or 1)
    load = workloads.encode(prompts, plain.tokenizer, room)
    records = [written(plain, item, drawn) for item in load.items]
    race = Race(plain, order, (*records, *copies(records)))
    return {
        "title": "Who drafts, along greedy texts",
        "benchmark": "choices",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, None),
        "settings": {
            "nodes": NODES,
            "price": order.price,
            "lookup": LOOKUP,
            "costs": dict(zip(COSTS.rows, COSTS.seconds, strict=True)),
            "texts": len(race.records),
            "repeats": order.repeats,
        },
        "convention": CONVENTION,
        "cases": list(race.cases()),
        "notes": [*notes, *load.notes],
    }


def written(plain: LLM, item: Item, sampling: Sampling) -> Record:
    """What the target makes of a prompt."""
    return Record(item.category, item.tokens, tuple(generate(plain, [item.tokens], [sampling]).texts[0]))


def copies(records: Sequence[Record]) -> Iterator[Record]:
    """Every third text once more behind itself, with some tokens of the next text in it."""
    for record, other in zip(records[::3], records[1::3], strict=False):
        changed = [o if at % CHANGED == 0 else t for at, (t, o) in enumerate(zip(record.output, other.output))]  # noqa: B905 - the shorter ends it
        yield Record(COPY, record.prompt + record.output, tuple(changed))


class Metered(Drafter):
    """Wraps a drafter and counts what its steps take, by the table."""

    def __init__(self, inner: Drafter, small: Sequence[Counted], price: float) -> None:
        self.inner, self.facts, self.small, self.price = inner, inner.facts, small, price
        self.seconds = 0.0

    def start(self, context: Context) -> Any:  # noqa: ANN401 - the drafter's own
        return self.inner.start(context)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        before = sum(one.passes for one in self.small)
        drafts = self.inner.propose(batch, budgets)
        passes = sum(one.passes for one in self.small) - before
        self.seconds += (LOOKUP + self.price * passes) * COSTS.of(1)
        return drafts

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.seconds += sum(COSTS.of(1 + len(outcome.draft or ())) for outcome in outcomes)
        self.inner.observe(batch, outcomes)

    def stop(self, context: Context) -> None:
        self.inner.stop(context)


@dataclass(frozen=True)
class Race:
    """Drafters that are asked along the same texts."""

    plain: LLM
    order: Order
    records: Sequence[Record]

    def cases(self) -> Iterator[dict[str, Any]]:
        """One per category and drafter, and on the mixture."""
        for category in (*dict.fromkeys(record.category for record in self.records), ALL):
            lines = [self.line(category, repeat) for repeat in range(self.order.repeats)]
            bar = track(self.order.drafters, category, console=Console(stderr=True))
            found = {drafter: np.array([self.along(drafter, line) for line in lines]) for drafter in bar}
            best = max(found, key=lambda drafter: float(found[drafter][:, 0].mean()))
            for drafter, figures in found.items():
                yield {
                    "category": category,
                    "drafter": drafter,
                    "tokens_per_step": float(figures[:, 1].mean()),
                    "rates": figures[:, 0].tolist(),
                    "over_plain": ratio(figures[:, 0], np.full(len(lines), 1 / COSTS.of(1))),
                    "over_best": {"drafter": best, **ratio(figures[:, 0], found[best][:, 0])},
                }

    def line(self, category: str, repeat: int) -> list[Record]:
        """Texts of a category, or of all, drawn with replacement, so that repeats tell how texts differ."""
        own = [record for record in self.records if category in (record.category, ALL)]
        return [own[at] for at in np.random.default_rng(repeat).integers(len(own), size=len(own)).tolist()]

    def along(self, spelled: str, line: Sequence[Record]) -> Floats:
        """Tokens per second and per step of a drafter that is new when the line begins."""
        drafter, tokens, steps = self.opened(spelled), 0, 0
        for number, record in enumerate(line):
            tally = replay(drafter, number, record, NODES, self.plain.model.info.vocab_size)
            tokens, steps = tokens + tally.tokens, steps + tally.steps
        return np.array([tokens / drafter.seconds, tokens / steps])

    def opened(self, spelled: str) -> Metered:
        """A drafter whose small models count their passes."""
        setup, small = setup_for(self.plain.config, self.plain.model, self.plain.tokenizer), list[Counted]()

        def open_model(folder: str, cache: str, dtype: str) -> Any:  # noqa: ANN401 - a Runner
            small.append(Counted(setup.open_model(folder, cache, dtype)))
            return small[-1]

        watched: Setup = replace(setup, open_model=open_model)
        return Metered(setup.open_drafter(spelled, watched), small, self.order.price)


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("category", "drafter", "tokens/step", "over plain", "over the best"):
        table.add_column(name, justify="left" if name in ("category", "drafter") else "right")
    for case in report["cases"]:
        names = case["category"], case["drafter"].replace("[", "\\[")
        table.add_row(*names, f"{case['tokens_per_step']:.2f}", shown(case["over_plain"]), shown(case["over_best"]))
    paper().print(table)
