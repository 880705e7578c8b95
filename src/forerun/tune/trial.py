"""Run a setting on prompts, and count on the way what its passes should take by their measured costs.

Everything is counted from the step after the one in which every text has its first token. What a step takes beside its
passes (the loop, the judging, drafting without a model, the growing of trees) is timed in an earlier run.
Does not: predict acceptance; steps and tokens are those of the run itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median
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
from forerun.types import Costs, Grown, Output, Runner, Sampling, Sprout, Work

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
    def lends(self) -> bool:
        return self.runner.lends

    def follows(self, *, asks: bool) -> bool:
        return self.runner.follows(asks=asks)

    def run(self, work: Sequence[Work]) -> list[Output]:
        self._add(work)
        return self.runner.run(work)

    def follow(self, steps: Iterable[Sequence[Work]]) -> list[list[Output]]:
        return self.runner.follow(self._added(steps))

    @property
    def branches(self) -> bool:
        return self.runner.branches

    def follow_best(self, sprouts: Sequence[Sprout]) -> list[Grown]:
        held = [sprout.past for sprout in sprouts]
        grown = self.runner.follow_best(sprouts)
        passes = [(len(sprout.tokens), *tree.widths) for sprout, tree in zip(sprouts, grown, strict=True)]
        for rows in zip_longest(*passes, fillvalue=0):
            context = sum(before for before, here in zip(held, rows, strict=True) if here)
            self.bill.add(self.costs, sum(rows), context, sum(map(bool, rows)))
            held = [before + here for before, here in zip(held, rows, strict=True)]
        return grown

    @property
    def aside(self) -> bool:
        return False

    def begin_best(self, sprouts: Sequence[Sprout]) -> Callable[[], list[Grown]]:
        """Never: what grows is billed when it has."""
        raise NotImplementedError

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
    beside: float = 0.0  # median seconds of a step beside its passes
    loop: float = 0.0  # the same of an earlier run, which the prediction counts on

    @property
    def expected(self) -> float:
        """Seconds of all passes by their costs, and of the loop around them."""
        drafting = sum(bill.seconds for bill in self.drafting)
        return self.target.seconds + drafting + self.loop * self.target.passes

    def predicted(self, plain: "Trial") -> float:
        """The speed-up by costs: tokens per step x (T(1) + loop) / (T(rows) + drafting + loop), by its steps.

        That is with one request; plain decoding's loop is its own.
        """
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


def run(entrant: Entrant, items: Sequence[Item], sampling: Sampling, loop: float = 0.0) -> Trial:
    """Generate for all items together; each has a seed of its own. `loop` is an earlier run's `Trial.beside`."""
    engine, target, texts = entrant.engine, Bill(), dict[int, int]()
    began = early = 0.0
    beside = list[float]()
    for item in items:
        own = replace(sampling, seed=(sampling.seed or 0) + item.number)
        texts[engine.add(item.tokens, own)] = 0
    while engine.busy:
        before, rows = _beside(entrant), engine.stats.rows
        held = [r.done for r in engine.requests.values() if r.slot is not None]
        for event in engine.step():
            if event.error is not None:
                raise ForerunError(event.error)
            texts[event.request] += len(event.emissions)
        if began and engine.stats.rows > rows:
            target.add(entrant.costs, engine.stats.rows - rows, sum(held), len(held))
            beside.append(_beside(entrant) - before)
        elif not began and all(texts.values()):
            early, began = sum(texts.values()), perf_counter()
            for second in entrant.seconds:
                second.bill = Bill()
    drafting = tuple(second.bill for second in entrant.seconds)
    usual = median(beside) if beside else 0.0
    return Trial(int(sum(texts.values()) - early), perf_counter() - began, target, drafting, usual, loop)


def _beside(entrant: Entrant) -> float:
    """Seconds that the engine has spent so far on anything but passes, those of second models by their costs."""
    stats = entrant.engine.stats
    drafting = sum(second.bill.seconds for second in entrant.seconds)
    return stats.plan_time + stats.commit_time + stats.other_time - drafting
