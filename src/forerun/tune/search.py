"""Profile, then run every setting in turns with plain decoding; a report of what was predicted and measured.

Does not: print, or write files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress

from forerun.bench import machine, workloads
from forerun.bench.drive import turns
from forerun.bench.figures import Spread
from forerun.bench.measure import CONVENTION, groups
from forerun.bench.speedup import model_facts, open_plain
from forerun.bench.workloads import Item
from forerun.build import costs_of
from forerun.config import Config
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.contract import Model
from forerun.models.load import NAMED
from forerun.tune import prompts as files
from forerun.tune.settings import PLAIN, Setting, given, usual
from forerun.tune.trial import Entrant, Trial, enter, run
from forerun.types import Costs, Sampling

SECONDS = 8.0  # of measuring the passes of a model
MAX_TOKENS = 64
_WARM_UP_TOKENS = 16

Report = dict[str, Any]
Pair = tuple[Trial, Trial]  # a setting's, and plain decoding's of the same round


@dataclass(frozen=True)
class Order:
    """What is to be tuned for."""

    prompts: Path
    drafters: Sequence[str] = ()  # beside the usual ones
    nodes: Sequence[int] = ()  # budgets of these
    only: bool = False  # not the usual ones
    repeats: int = 3
    inflate: str | None = None


def tune(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> Report:
    """Everything; `config` and `sampling` are the keywords that were given."""
    read = files.read(order.prompts)
    if not given(order.drafters, order.nodes, config.get("planner")) and order.only:
        raise ConfigError("--only leaves nothing to try; name what is to be tried with --drafter.")
    keywords = {"max_requests": 1, **config}
    drawn = Sampling(**{"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, **sampling})
    plain, notes = open_plain(keywords, order.inflate)
    load = workloads.encode(read, plain.tokenizer, plain.engine.limits.context_length - (drawn.max_tokens or 1))
    curves = Curves(plain.config)
    entrants = list(opened(order, plain, keywords, curves, notes))
    pairs = race(entrants, groups(load.items, plain.config.max_requests), drawn, order.repeats)
    rows = [figures(entrant.setting, found) for entrant, found in zip(entrants[1:], pairs, strict=True)]
    return {
        "title": "Predicted and measured speed-up over plain decoding",
        "benchmark": "tune",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, order.inflate),
        "settings": {"prompts": len(load.items), "repeats": order.repeats, "sampling": asdict(drawn)},
        "convention": CONVENTION,
        "costs": [{"model": name, **asdict(costs)} for name, costs in curves.known.items()],
        "rows": rows,
        "within": sum(abs(row["error"]) <= 0.1 for row in rows),  # noqa: PLR2004 - what is asked of a cost model
        "best": best(rows),
        "notes": [*notes, *load.notes],
    }


def place(model: str) -> str:
    """A model's name as it can be found from any folder."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if model not in NAMED and folder.is_dir() else model


class Curves:
    """The costs of every model that takes part, each measured once."""

    def __init__(self, config: Config) -> None:
        self.config, self.known = config, dict[str, Costs]()

    def of(self, model: Model) -> Costs:
        """Measured now, and kept for whoever asks later."""
        info = model.info
        name = f"{Path(info.name).name}, {info.rounded or str(info.layout.dtype).removeprefix('torch.')}"
        if name not in self.known:
            length = min(self.config.context_length or info.context_length, info.context_length)
            self.known[name] = costs_of(self.config, model, length, SECONDS)
        return self.known[name]


def opened(order: Order, plain: LLM, keywords: dict[str, Any], curves: Curves, notes: list[str]) -> Iterator[Entrant]:
    """Plain decoding, then every setting; of the usual ones those that this model can have."""
    planner, costs = keywords.get("planner"), curves.of(plain.model)
    make = partial(enter, plain=plain, keywords=keywords, costs=costs, curve=curves.of)
    yield Entrant(PLAIN, plain.engine, costs)
    asked = given(order.drafters, order.nodes, planner)
    for setting in () if order.only else usual(planner, companion=plain.model.info.companion is not None):
        try:
            if setting not in asked:
                yield make(setting)
        except ConfigError as problem:
            notes.append(f"{setting.drafter} was left out: {problem}")
    yield from map(make, asked)


def race(
    entrants: Sequence[Entrant], groups: Sequence[tuple[Item, ...]], sampling: Sampling, repeats: int
) -> list[list[Pair]]:
    """Per setting, every group in every round beside plain decoding in the same round, which comes first in `entrants`.

    Texts that are whole after their first step say nothing about speed, and are left out.
    """
    warm_up = replace(sampling, max_tokens=_WARM_UP_TOKENS)
    loops = [run(entrant, groups[0], warm_up).beside for entrant in entrants]
    pairs: list[list[Pair]] = [[] for _ in entrants[1:]]
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=len(groups) * repeats * len(entrants))
        for group in groups:
            for _, order in turns(len(entrants), repeats):
                found = {}
                for who in order:
                    found[who] = run(entrants[who], group, sampling, loops[who])
                    bar.advance(task)
                for who, held in enumerate(pairs, 1):
                    if found[0].tokens and found[who].tokens:
                        held.append((found[who], found[0]))
    if not all(pairs):
        raise ConfigError("every text was whole after its first step, which says nothing; give more --max-tokens.")
    return pairs


def figures(setting: Setting, pairs: Sequence[Pair]) -> dict[str, Any]:
    """What was predicted and measured of a setting; the error is the median of the runs', since texts differ."""
    predicted = Spread.of([own.predicted(plain) for own, plain in pairs])
    measured = Spread.of([own.measured(plain) for own, plain in pairs])
    steps = sum(own.target.passes for own, _ in pairs)
    drafting = [bill for own, _ in pairs for bill in own.drafting]
    return {
        **asdict(setting),
        "predicted": asdict(predicted),
        "measured": asdict(measured),
        "error": median(own.predicted(plain) / own.measured(plain) for own, plain in pairs) - 1,
        "tokens_per_step": sum(own.tokens for own, _ in pairs) / steps,
        "rows_per_step": sum(own.target.rows for own, _ in pairs) / steps,
        "pass_ms": 1e3 * sum(own.target.seconds for own, _ in pairs) / steps,
        "drafting_ms": 1e3 * sum(bill.seconds for bill in drafting) / steps,
        "loop_ms": 1e3 * pairs[0][0].loop,
        "drafting_passes": sum(bill.passes for bill in drafting) / steps,
        "step_ms": 1e3 * sum(own.seconds for own, _ in pairs) / steps,
    }


def best(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The fastest setting that was measured; plain decoding where nothing is faster."""
    fastest = max(rows, key=lambda row: row["measured"]["median"])
    if fastest["measured"]["median"] <= 1:
        return asdict(PLAIN)
    return {name: fastest[name] for name in asdict(PLAIN)}
