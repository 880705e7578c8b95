"""Run a setting on prompts, and count on the way what its passes should take by their measured costs.

Everything is counted from the step after the one in which every text has its first token.
Does not: count what the loop itself takes, drafting without a model, or the judging.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, cast

from forerun.bench.workloads import Item
from forerun.build import assemble, choose_all, setup_for
from forerun.config import Config
from forerun.engine.engine import Engine
from forerun.engine.runner import ModelRunner
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.models.contract import Model
from forerun.tune.settings import Setting
from forerun.types import Costs, Output, Runner, Sampling, Work

Curve = Callable[[Model], Costs]


@dataclass(slots=True)
class Bill:
    """What passes should take."""

    passes: int = 0
    rows: int = 0
    seconds: float = 0.0

    def add(self, costs: Costs, rows: int, context: int, requests: int) -> None:
        """One more pass of so many rows, over so many requests that have `context` tokens together."""
        self.passes += 1
        self.rows += rows
        self.seconds += costs.of(rows, context, requests)


class Counted:
    """A second model's runner that bills every pass."""

    def __init__(self, runner: Runner, costs: Costs) -> None:
        self.runner, self.costs, self.bill = runner, costs, Bill()
        self.cache, self.info = runner.cache, runner.info

    @property
    def follows(self) -> bool:
        return self.runner.follows

    def run(self, work: Sequence[Work]) -> list[Output]:
        self._add(work)
        return self.runner.run(work)

    def follow(self, steps: Iterable[Sequence[Work]]) -> list[list[Output]]:
        return self.runner.follow(self._added(steps))

    def _added(self, steps: Iterable[Sequence[Work]]) -> Iterator[Sequence[Work]]:
        for work in steps:
            self._add(work)
            yield work

    def _add(self, work: Sequence[Work]) -> None:
        context = sum(self.cache.length(w.slot) + w.base for w in work)
        self.bill.add(self.costs, sum(len(w.tokens) for w in work), context, len(work))


@dataclass(frozen=True, eq=False)
class Entrant:
    """A setting that can run."""

    setting: Setting
    engine: Engine
    costs: Costs  # of the target's passes
    seconds: list[Counted] = field(default_factory=list)  # second models


@dataclass(frozen=True)
class Trial:
    """One group of prompts, generated once: what it took and what it should have taken."""

    tokens: int
    seconds: float
    target: Bill
    drafting: tuple[Bill, ...] = ()

    @property
    def expected(self) -> float:
        """Seconds of all passes by their costs."""
        return self.target.seconds + sum(bill.seconds for bill in self.drafting)

    def predicted(self, plain: "Trial") -> float:
        """The speed-up by costs: with one request, tokens per step x T(1) / (T(rows) + drafting), by its steps."""
        return self.tokens / self.expected * plain.expected / plain.tokens

    def measured(self, plain: "Trial") -> float:
        """The speed-up by the clock."""
        return self.tokens / self.seconds * plain.seconds / plain.tokens


def enter(setting: Setting, plain: LLM, keywords: dict[str, Any], costs: Costs, curve: Curve) -> Entrant:
    """The setting on the model and tokenizer of `plain`; `curve` knows the costs of second models."""
    own = {"model": plain.config.model, "drafter": setting.drafter, "planner": setting.planner}
    config, counted = Config(**{**keywords, **own}), list[Counted]()
    setup = setup_for(config, plain.model, plain.tokenizer)

    def open_model(folder: str, cache: str, dtype: str) -> Runner:
        runner = cast("ModelRunner", setup.open_model(folder, cache, dtype))
        counted.append(Counted(runner, curve(runner.model)))
        return counted[-1]

    choices = choose_all(config, {}, plain.model.info.companion)
    opened = replace(setup, open_model=open_model)
    engine = assemble(choices, config, plain.model, opened, plain.tokenizer.decode)
    return Entrant(setting, engine, costs, counted)


def run(entrant: Entrant, items: Sequence[Item], sampling: Sampling) -> Trial:
    """Generate for all items together; each has a seed of its own."""
    engine, target, texts = entrant.engine, Bill(), dict[int, int]()
    began = early = 0.0
    for item in items:
        own = replace(sampling, seed=(sampling.seed or 0) + item.number)
        texts[engine.add(item.tokens, own)] = 0
    while engine.busy:
        rows, held = engine.stats.rows, [r.done for r in engine.requests.values() if r.slot is not None]
        for event in engine.step():
            if event.error is not None:
                raise ForerunError(event.error)
            texts[event.request] += len(event.emissions)
        if began and engine.stats.rows > rows:
            target.add(entrant.costs, engine.stats.rows - rows, sum(held), len(held))
        elif not began and all(texts.values()):
            early, began = sum(texts.values()), perf_counter()
            for second in entrant.seconds:
                second.bill = Bill()
    drafting = tuple(second.bill for second in entrant.seconds)
    return Trial(int(sum(texts.values()) - early), perf_counter() - began, target, drafting)
