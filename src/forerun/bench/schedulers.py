"""`forerun bench schedulers`: every scheduler serves the same arrivals; every eviction reads the same prompts.

The engine, its scheduler and its cache are the real ones; the model says nothing, and time is that of a table of what
passes cost by their rows (a model of 360M in int8 on two cores, see the report), so that the same command brings the
same figures anywhere. A copied token has its price as well. `load` is the work that arrives, by that table, a second.
Does not: charge for context, or for the scheduler's own time; draft; measure a machine.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, traces
from forerun.bench.figures import quantile
from forerun.bench.paper import paper, png, sheet
from forerun.bench.planners import COSTS
from forerun.bench.traces import FLOOD, VOCAB, Arrival
from forerun.build import assemble, choose_all, setup_for
from forerun.caches import CACHES
from forerun.caches.contract import Cache
from forerun.config import Choice, Config, choose
from forerun.engine.engine import Engine
from forerun.layers.evict import TRUST
from forerun.models.contract import Model, ModelInfo
from forerun.schedulers import SCHEDULERS
from forerun.schedulers.contract import Candidate, Pick, Scheduler
from forerun.types import Event, Facts, KVLayout, Output, Pass, PassOutput, Sampling, Segment, Setup, Work

CONTEXT = 4096  # tokens
SEATS = 16
ROOM = 2048  # tokens of a step
POOL = 12288  # tokens of the cache; less than the seats could use
COPY = 1e-5  # seconds per token that is copied: 40 kB at 4 GB/s
LINE, POOLS = 3000, (16384, 65536, 262144)  # requests and tokens, for evictions alone
FIRST, PACE = 1.0, 0.05  # objectives: seconds to the first token, and per token after it
EVICTIONS = ("regions", *TRUST)
CONVENTION = f"goodput: requests per second with their first token within {FIRST:g} s and {PACE * 1e3:g} ms per token"


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    trace: str = "mixed"
    loads: Sequence[float] = (0.6, 0.9)
    requests: int = 300
    settings: Sequence[str] = ()  # further schedulers
    only: bool = False  # not all in the table
    data: Path | None = None

    @property
    def spelled(self) -> list[str]:
        """Every scheduler that takes part."""
        return list(dict.fromkeys([*([] if self.only else SCHEDULERS), *self.settings]))


class Mute(Model):
    """Finds every token equally likely."""

    def __init__(self) -> None:
        layout = KVLayout((1,), (1,), torch.float32, torch.device("cpu"))
        self.info = ModelInfo("mute", VOCAB, CONTEXT, 1, 1, layout)

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        count = len(work.tokens) if work.logits is None else len(work.logits)
        return PassOutput(torch.zeros(count, VOCAB), {})


@dataclass
class Clock:
    """Seconds that nobody waits for."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Charged(Scheduler):
    """A scheduler whose copies take their time.

    Does not: decide anything.
    """

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """The scheduler, and the clock that copies move."""

        inner: Choice
        clock: Clock

    def __init__(self, options: Options, setup: Setup) -> None:
        self.inner: Scheduler = options.inner.member(options.inner.options, setup)
        self.clock = options.clock

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return self.inner.admit(waiting, now)

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        return self.inner.pick(running, room, now)

    def yielding(self, running: Sequence[Candidate], waiting: Sequence[Candidate], now: float) -> Sequence[int]:
        return self.inner.yielding(running, waiting, now)

    def victim(self, running: Sequence[Candidate], now: float) -> int:
        return self.inner.victim(running, now)

    def saves(self, candidate: Candidate) -> bool:
        return self.inner.saves(candidate)

    def moved(self, tokens: int, seconds: float) -> None:
        self.clock.now += COPY * tokens
        self.inner.moved(tokens, COPY * tokens)

    def ended(self, candidate: Candidate) -> None:
        self.inner.ended(candidate)


def opened(scheduler: str, clock: Clock) -> Engine:
    """An engine by the clock of the table."""
    cache = f"paged:blocks={POOL // 16},evict=lru"
    own = {"drafter": "none", "planner": "fixed:nodes=0", "decoder": "autoregressive"}
    config, _ = Config.parse(cache=cache, max_requests=SEATS, max_step_tokens=ROOM, **own)
    model = Mute()
    charged = Charged.Options(choose(SCHEDULERS, scheduler), clock)
    choices = replace(choose_all(config, {}, None), scheduler=Choice("scheduler", scheduler, Charged, charged))
    setup = replace(setup_for(config, model), costs=lambda: COSTS)
    engine = assemble(choices, config, model, setup, lambda _: "")
    working = engine.runner.run

    def run(work: Sequence[Work]) -> list[Output]:
        clock.now += COSTS.of(sum(len(w.tokens) for w in work))
        return working(work)

    engine.clock, engine.runner.run = clock, run  # type: ignore[method-assign]
    return engine


@dataclass
class Served:
    """What one request got."""

    arrival: Arrival
    times: list[float]  # of each of its events
    tokens: int = 0
    cached: int = 0

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.arrival.at

    @property
    def each(self) -> float:
        """Seconds per token after the first."""
        return (self.times[-1] - self.times[0]) / max(self.tokens - 1, 1)

    @property
    def good(self) -> bool:
        """Whether it met its objectives."""
        return self.first <= FIRST and self.each <= PACE


def serve(scheduler: str, arrivals: Sequence[Arrival]) -> tuple[list[Served], Engine]:
    """Play the arrivals to their end."""
    clock = Clock()
    engine, served = opened(scheduler, clock), dict[int, Served]()
    line = list(arrivals[::-1])
    while line or engine.busy:
        if not engine.busy:
            clock.now = max(clock.now, line[-1].at)
        while line and line[-1].at <= clock.now:
            a = line.pop()
            sampling = Sampling(temperature=0, max_tokens=a.output, ignore_eos=True, seed=0)
            number = engine.add(a.prompt, sampling, a.scope, priority=a.priority)
            engine.requests[number].arrived = a.at  # a step was under way when it came
            served[number] = Served(a, [])
        for event in engine.step():
            _hear(served[event.request], event)
    return list(served.values()), engine


def _hear(one: Served, event: Event) -> None:
    if event.emissions:
        one.times.append(event.time)
        one.tokens += len(event.emissions)
    if event.stats is not None:
        one.cached = event.stats.cached


def figures(served: Sequence[Served], engine: Engine) -> dict[str, Any]:
    """What a scheduler made of the arrivals; times in milliseconds."""
    seconds = max(one.times[-1] for one in served)
    gaps = [1e3 * (b - a) for one in served for a, b in zip(one.times, one.times[1:], strict=False)]
    quiet = [one for one in served if one.arrival.scope != FLOOD]
    urgent = [one for one in served if one.arrival.priority < 0]
    return {
        "ttft_ms": _ends([1e3 * one.first for one in served]),
        "ttft_quiet_ms": _ends([1e3 * one.first for one in quiet]),
        "ttft_urgent_ms": _ends([1e3 * one.first for one in urgent]),
        "tpot_ms": _ends([1e3 * one.each for one in served if one.tokens > 1]),
        "itl_ms": _ends(gaps),
        "goodput": sum(one.good for one in served) / seconds,
        "tokens_per_second": sum(one.tokens for one in served) / seconds,
        "found": sum(one.cached for one in served) / sum(len(one.arrival.prompt) for one in served),
        "preemptions": engine.stats.preemptions,
        "copied": engine.stats.moved,
    }


def _ends(values: Sequence[float]) -> dict[str, float]:
    return {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)}


def run(order: Order) -> dict[str, Any]:
    """The whole benchmark."""
    for spelled in order.spelled:
        choose(SCHEDULERS, spelled)  # what is spelled wrong is refused before anything is played
    arrivals = [a for a in traces.read(order.trace, order.data, order.requests) if len(a.prompt) + a.output < CONTEXT]
    pairs = [(name, load) for load in order.loads for name in order.spelled]
    cases: list[dict[str, Any]] = []
    for name, load in track(pairs, "arrivals", console=Console(stderr=True)):
        served, engine = serve(name, traces.paced(arrivals, work_of, load))
        cases.append({"scheduler": name, "load": load, **figures(served, engine)})
    return {
        "title": f"Schedulers and {len(arrivals)} requests of the trace {order.trace}",
        "benchmark": "schedulers",
        "machine": machine.facts(),
        **machine.circumstances(),
        "settings": {
            **{name: value for name, value in asdict(order).items() if name != "data"},
            "costs": dict(zip(COSTS.rows, COSTS.seconds, strict=True)),
            "seats": SEATS,
            "room": ROOM,
            "pool": POOL,
            "copy": COPY,
            "shrink": traces.SHRINK,
        },
        "convention": CONVENTION,
        "cases": cases,
        "notes": [] if order.only or order.trace in traces.MADE_UP else [found_text(order)],  # those share nothing
    }


def found_text(order: Order) -> str:
    """How much of prompts that come one after the other each eviction still holds, by the size of the pool."""
    prompts = [a.prompt for a in traces.read(order.trace, order.data, LINE) if len(a.prompt) < CONTEXT]
    sizes = [
        f"{pool} tokens: " + ", ".join(f"{evict} {found(evict, pool, prompts):.1%}" for evict in EVICTIONS)
        for pool in POOLS
    ]
    return f"Found of the prompts of {len(prompts)} requests, one after the other, in a pool of {'; of '.join(sizes)}."


def found(evict: str, pool: int, prompts: Sequence[tuple[int, ...]]) -> float:
    """The share of all tokens that a cache holds when they come."""
    choice = choose(CACHES, f"paged:blocks={pool // 16},evict={evict}")
    cache: Cache = choice.member(choice.options, Mute().info.layout, SEATS, CONTEXT)
    held = 0
    for prompt in prompts:
        slot, old = cache.open(prompt)
        count = len(prompt) - old
        cache.reserve(slot, count)
        cache.advance((Segment(slot, 0, count, old, 0, None),))
        cache.keep(slot, prompt[old:], range(count))
        cache.close(slot)
        held += old
    return held / sum(map(len, prompts))


def work_of(arrival: Arrival) -> float:
    """Seconds of a busy machine: a share of full passes."""
    row = (COSTS.seconds[-1] - COSTS.seconds[-2]) / (COSTS.rows[-1] - COSTS.rows[-2])
    return row * len(arrival.prompt) + arrival.output * COSTS.of(SEATS) / SEATS


HEADER = (
    *("load", "scheduler", "TTFT ms, p50 / p99", "of quiet scopes", "of urgent ones"),
    *("TPOT ms, p50 / p99", "ITL ms, p99", "goodput", "tokens/s", "found", "preempted"),
)


def cells(case: dict[str, Any]) -> tuple[str, ...]:
    """One row below HEADER."""
    names = ("ttft_ms", "ttft_quiet_ms", "ttft_urgent_ms", "tpot_ms")
    times = (f"{case[name]['p50']:.0f} / {case[name]['p99']:.0f}" for name in names)
    return (
        f"{case['load']:g}",
        case["scheduler"],
        *times,
        f"{case['itl_ms']['p99']:.0f}",
        f"{case['goodput']:.2f}",
        f"{case['tokens_per_second']:.0f}",
        f"{case['found']:.0%}",
        str(case["preemptions"]),
    )


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], caption=report["convention"], title_justify="left", caption_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name in HEADER[1:2] else "right", overflow="fold")
    for case in report["cases"]:
        table.add_row(*(cell.replace("[", "\\[") for cell in cells(case)))
    console = paper()
    console.print(table, *report["notes"], sep="\n")


def plot(report: dict[str, Any]) -> bytes:
    """The slowest first tokens and the slowest gaps, by scheduler and load, as a PNG."""
    figure = sheet(11, 4.5)
    cases = report["cases"]
    names = list(dict.fromkeys(case["scheduler"] for case in cases))
    for axes, what, title in zip(figure.subplots(1, 2), ("ttft_ms", "itl_ms"), ("first token", "gap"), strict=True):
        for load in dict.fromkeys(case["load"] for case in cases):
            found = {case["scheduler"]: case[what]["p99"] for case in cases if case["load"] == load}
            axes.plot(names, [found[name] for name in names], "o", label=f"load {load:g}")
        axes.set_title(f"{title}, ms, p99")
        axes.set_yscale("log")
        axes.tick_params("x", rotation=40)
        axes.legend()
    return png(figure)
