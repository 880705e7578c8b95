"""`forerun bench serve`: servers under load, as their clients see them, in turns.

Closed loop: so many clients, each asks again as soon as it is answered. Open loop: requests arrive at a rate, at random
(Poisson) or as they came in a trace, whether the server keeps up or not. Every answer is streamed. TTFT is the time to
the first part with text, TPOT the time per token after it, ITL the time between two parts; goodput counts answers that
met both objectives. The clients' own CPU time is given too: they may share the cores with the server. The same load
goes to every server in turns, each time to new ones, and what a further one does is divided by what the first did in
the same round, or with the same part of its requests: a machine changes within seconds. One that is called `library`
is no server: LLM in this process, as many requests at once.
Does not: know more of a trace than times and lengths.
"""

import asyncio
import contextlib
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rich.table import Table

from forerun.bench import machine, traces, workloads
from forerun.bench.figures import Spread
from forerun.bench.load import Answer, Body, closed, figures, opened
from forerun.bench.paper import paper, png, sheet
from forerun.config import Config
from forerun.errors import ConfigError, ForerunError
from forerun.llm import LLM
from forerun.types import Sampling

TOKENS = 64  # per answer, unless told otherwise
WARM = 4  # requests
LIBRARY = "library"


@dataclass(frozen=True)
class Order:
    """What to ask of whom."""

    url: str | None = None  # of a server that runs; None: one is started
    concurrency: Sequence[int] = (1, 4, 16)
    rate: Sequence[float] = ()  # requests per second; instead of concurrency
    requests: int = 64  # at each load
    ttft_ms: float = 500.0  # objectives
    tpot_ms: float = 50.0
    against: Sequence[str] = ()  # flags of further servers, or LIBRARY
    repeats: int = 1  # of every load, each time with servers of its own
    parts: int = 1  # of a load's requests, after each of which it is the next server's turn
    categories: Sequence[str] = ("story",)  # of prompts, which come in turn
    trace: str = ""  # whose lengths and moments are taken, at `rate` on the average
    data: Path | None = None


Target = Callable[[Sequence[Body], int, Sequence[float]], Awaitable[list[Answer]]]  # bodies, clients (0: none), moments


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Every load, one after the other, behind a few requests that warm up; of every server in turns."""
    if order.trace and not order.rate:
        raise ConfigError(f"trace {order.trace!r} is given without a rate; give --rate, requests per second.")
    if order.rate and LIBRARY in order.against:
        raise ConfigError("the library has no queue for requests at a rate; use --concurrency.")
    if order.parts > 1 and (order.rate or order.requests // order.parts < max(order.concurrency)):
        least = order.parts * max(order.concurrency)
        raise ConfigError(f"a part must have a request for every client; use --concurrency and --requests {least}.")
    settings = {"max_tokens": TOKENS, **sampling, "stream": True, "stream_options": {"include_usage": True}}
    bodies, moments = _traced(order, settings) if order.trace else _prompted(order, settings)
    loads = asyncio.run(_measure(order, config, (bodies, moments)))
    goals = {"ttft_ms": order.ttft_ms, "tpot_ms": order.tpot_ms}
    return {
        "title": "Servers under load, as their clients see them",
        "benchmark": "serve",
        **machine.circumstances(),
        "machine": machine.facts() | {"threads": config.get("threads", "all")},
        "goals": goals,
        "loads": loads,
    }


def _prompted(order: Order, settings: Body) -> tuple[list[Body], list[float]]:
    """Prompts of every category in turn, and the moments of one request per second.

    Answers that do not end by themselves are half to one and a half times as long as asked. Were they equal, clients
    would begin and end together, which suits plain decoding: prompts are read in one pass, and being ahead is no use.
    """
    kinds, rng = dict[str, list[workloads.Prompt]](), np.random.default_rng(0)
    for prompt in workloads.load(order.categories, order.requests, order.data):
        kinds.setdefault(prompt.category, []).append(prompt)
    turns = zip(*map(cycle, kinds.values()), strict=True)
    prompts = islice(chain.from_iterable(turns), order.requests)
    moments = rng.exponential(1.0, order.requests).cumsum().tolist()
    longer = rng.uniform(0.5, 1.5, order.requests) if settings.get("ignore_eos") else np.ones(order.requests)
    bodies: list[Body] = []
    for prompt, factor in zip(prompts, longer.tolist(), strict=True):
        most = max(1, round(settings["max_tokens"] * factor))
        bodies.append({**_said(prompt), **settings, "max_tokens": most})
    return bodies, moments


def _said(prompt: workloads.Prompt) -> Body:
    return {"messages": [{"role": "user", "content": prompt.text}]} if prompt.chat else {"prompt": prompt.text}


def _traced(order: Order, settings: Body) -> tuple[list[Body], list[float]]:
    arrivals = traces.read(order.trace, order.data, order.requests)
    first, span = arrivals[0].at, arrivals[-1].at - arrivals[0].at
    bodies: list[Body] = [
        {**settings, "prompt": list(a.prompt), "max_tokens": a.output, "ignore_eos": True} for a in arrivals
    ]
    return bodies, [(a.at - first) * len(arrivals) / max(span, 1e-9) for a in arrivals]


async def _measure(
    order: Order, config: Mapping[str, Any], work: tuple[Sequence[Body], Sequence[float]]
) -> list[dict[str, Any]]:
    """Every load on every target, in turns that change their order; each round has servers of its own.

    What a process finds in memory stays with it: a server beside its equal may be a tenth faster for all its life.
    """
    loads: list[tuple[str, float]] = [("rate", rate) for rate in order.rate]
    loads = loads or [("concurrency", clients) for clients in order.concurrency]
    names = ["", *order.against]
    found = {load: {name: list[dict[str, Any]]() for name in names} for load in loads}
    for turn in range(order.repeats):
        turns = names[turn % len(names) :] + names[: turn % len(names)]
        async with contextlib.AsyncExitStack() as stack:
            targets = {name: await _target(order, config, name, stack) for name in turns}
            for target in targets.values():
                await target(work[0][:WARM], 1, ())
            for load, part, name in product(loads, range(order.parts), turns):
                own = slice(part * len(work[0]) // order.parts, (part + 1) * len(work[0]) // order.parts)
                found[load][name].append(await _round(order, load, targets[name], (work[0][own], work[1][own])))
    return [case for load in loads for case in _cases(load, found[load])]


async def _target(order: Order, config: Mapping[str, Any], flags: str, stack: contextlib.AsyncExitStack) -> Target:
    if flags == LIBRARY:
        return _library(config)
    if order.url is not None and not flags:
        return _asking(order.url.rstrip("/"))
    return await stack.enter_async_context(served(config, shlex.split(flags)))


async def _round(
    order: Order, load: tuple[str, float], target: Target, work: tuple[Sequence[Body], Sequence[float]]
) -> dict[str, Any]:
    """One load on one target."""
    (kind, size), (bodies, moments), began = load, work, process_time()
    answers = await (
        target(bodies, 0, [moment / size for moment in moments]) if kind == "rate" else target(bodies, int(size), ())
    )
    spent = process_time() - began
    told = figures(answers, order.ttft_ms, order.tpot_ms)
    return told | {"client_us_per_token": 1e6 * spent / sum(answer.tokens for answer in answers)}


def _cases(load: tuple[str, float], found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Of every target its middle round, how many were asked in all, and its rounds over the first one's."""
    kind, size = load
    cases = []
    for name, rounds in found.items():
        middle = sorted(rounds, key=lambda one: float(one["tokens_per_second"]))[len(rounds) // 2]
        pairs = list(zip(rounds, found[""], strict=True))
        over = {
            key: vars(Spread.of([a[key] / b[key] for a, b in pairs if b[key]]))
            for key in ("tokens_per_second", "goodput")
        }
        over["ttft_p99"] = vars(Spread.of([a["ttft_ms"]["p99"] / b["ttft_ms"]["p99"] for a, b in pairs]))
        asked = {key: sum(one[key] for one in rounds) for key in ("requests", "failed")}
        case = {kind: size, "flags": name, **middle, **asked, **({"over": over} if name else {})}
        if name == LIBRARY:
            del case["client_us_per_token"]  # which has no clients
        cases.append(case)
    return cases


@contextlib.asynccontextmanager
async def served(config: Mapping[str, Any], further: Sequence[str]) -> AsyncIterator[Target]:
    """A server of our own, which ends with the block."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in config.items() if name != "model"]
    model = [str(config["model"])] if "model" in config else []
    command = [sys.executable, "-c", "from forerun.cli import main; main()", "serve", *model, "--port=0"]
    command += [*flags, *further]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    log = child.stderr or asyncio.StreamReader()
    said = b""
    while b" at http" not in said:
        said = await log.readline()
        if not said:
            raise ForerunError(f"the server ended with code {await child.wait()}; try forerun serve with these flags.")
    reading = asyncio.create_task(log.read())  # its log, which would fill the pipe
    try:
        yield _asking(said.decode().split()[-1])
    finally:
        child.terminate()
        await child.wait()
        await reading


def _asking(url: str) -> Target:
    async def target(bodies: Sequence[Body], clients: int, moments: Sequence[float]) -> list[Answer]:
        return await (closed(url, bodies, clients) if clients else opened(url, bodies, moments))

    return target


def _library(config: Mapping[str, Any]) -> Target:
    """LLM in this process, for closed loops; as many requests at a time as clients, but no more than a server's."""
    kept, most = dict[int, LLM](), int(config.get("max_requests", Config.max_requests))

    async def target(bodies: Sequence[Body], clients: int, _: Sequence[float]) -> list[Answer]:
        running = min(clients, most)
        if running not in kept:
            kept[running] = LLM(**{**config, "max_requests": running})
        return _written(kept[running], bodies)

    return target


def _written(llm: LLM, bodies: Sequence[Body]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    for body in bodies:
        own = {k: v for k, v in body.items() if k not in {"prompt", "messages", "stream", "stream_options"}}
        prompt = llm.tokenizer.chat(body["messages"]) if "messages" in body else llm.encode(body["prompt"])
        answers[llm.engine.add(prompt, Sampling(**own))] = Answer(perf_counter(), 200)
    while llm.engine.busy:
        for event in llm.engine.step():
            answer = answers[event.request]
            answer.tokens += len(event.emissions)
            answer.parts += [event.time] if event.text else []
    return list(answers.values())


def show(found: Mapping[str, Any]) -> None:
    """A row per load and server."""
    console, goals = paper(), found["goals"]
    caption = f"goodput: answers per second with ttft <= {goals['ttft_ms']:g} ms and tpot <= {goals['tpot_ms']:g} ms"
    table = Table(title="a server under load; ms are p50 / p95 / p99", caption=caption, title_justify="left")
    for name in (
        "load",
        "server",
        "tokens/s",
        "over",
        "requests/s",
        "goodput",
        "failed",
        "ttft ms",
        "tpot ms",
        "itl ms",
    ):
        table.add_column(name, justify="right")
    for load in found["loads"]:
        name = f"{load['rate']:g}/s" if "rate" in load else f"{load['concurrency']} clients"
        tokens, *speeds = (f"{load[key]:.4g}" for key in ("tokens_per_second", "requests_per_second", "goodput"))
        over = Spread(**load["over"]["tokens_per_second"]).shown() if "over" in load else ""
        times = (" / ".join(f"{v:.3g}" for v in load[key].values()) for key in ("ttft_ms", "tpot_ms", "itl_ms"))
        table.add_row(name, load["flags"], tokens, over, *speeds, str(load["failed"]), *times)
    console.print(table)


def plot(found: Mapping[str, Any]) -> bytes:
    """Goodput by load, a line per server, as a PNG."""
    figure = sheet(7, 4.5)
    axes, loads = figure.subplots(), found["loads"]
    kind = "rate" if "rate" in loads[0] else "concurrency"
    for flags in dict.fromkeys(load["flags"] for load in loads):
        own = [load for load in loads if load["flags"] == flags]
        axes.plot([load[kind] for load in own], [load["goodput"] for load in own], "o-", label=flags or "the first")
    axes.set_xlabel("requests per second" if kind == "rate" else "clients")
    axes.set_ylabel("answers per second that met both objectives")
    axes.set_ylim(bottom=0)
    axes.legend()
    return png(figure)
