"""`forerun bench peers`: other engines beside forerun, on the same weights, taking turns in one run on the CPU.

Every engine is a process of its own, perhaps of another environment, and all of a shape are open at a time. In each
round every engine does each task once, in an order that moves on from task to task; one works while the others are
stopped. Ratios are taken within a round, where the machine was the same for both. Weights are random, or the bundled
model's, enlarged to the shape's size: then speculation is measured too, on texts, by every engine that takes a draft
model of its own.
Does not: take ratios of forerun's further variants, which have rows of their own (w8a8 loses more than int8, as
`forerun bench quality` shows); compare texts or quality, which differs at equal bits; install anything; run on a GPU.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.checkpoints import checkpoint, once
from forerun.bench.children import (
    ENGINES,
    Child,
    DiedError,
    Engine,
    FailedError,
    MissingError,
    RefusedError,
    busy_cpu_seconds,
    cpu_seconds,
)
from forerun.bench.engines import DTYPES, OWN, PEERS, Entrant, Peer, entrants
from forerun.bench.enlarged import pair
from forerun.bench.figures import Spread
from forerun.bench.paper import paper
from forerun.bench.roofline import SHAPES
from forerun.errors import ConfigError, ForerunError, unknown
from forerun.kernels import native
from forerun.models.native import threads_for
from forerun.models.tokenizer import Tokenizer

Task = tuple[str, dict[str, Any]]  # its name, and what the engine is asked

KINDS = ("decode", "prefill", "batch", "width", "speculate")  # of tasks
_BUFFER = 512 << 20  # bytes that are read to learn the memory's speed; far more than any cache holds
_SPECIAL = 300  # token ids below are bytes and marks
_WARM_UP_TOKENS = 16
_TEXTS, _LONGEST = 10, 512  # prompts of a category, and their tokens
_MIB = 2**20


@dataclass(frozen=True)
class Order:
    """What to measure, and where files are kept."""

    work: Path
    shapes: Sequence[str] = ("125M", "360M")
    dtypes: Sequence[str] = DTYPES
    only: Sequence[str] = ()  # peers beside forerun; none: all
    pythons: Mapping[str, str] = field(default_factory=dict)  # peer -> interpreter
    rounds: int = 5
    threads: int = 0
    reference: bool = False  # the bundled model, enlarged, with its drafter; else random weights
    prompt: int = 128
    tokens: int = 64
    prefill: int = 512
    sequences: int = 8
    context: int = 256
    widths: Sequence[int] = (1, 2, 4, 8, 16)


@dataclass
class Runner:
    """An entrant whose process is open."""

    entrant: Entrant
    child: Child
    facts: dict[str, Any]
    lacks: set[str] = field(default_factory=set)
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)  # task -> round -> seconds of a token


@dataclass
class Contest:
    """One shape: who runs, and who does not."""

    shape: str
    runners: list[Runner] = field(default_factory=list)
    left_out: list[dict[str, str | None]] = field(default_factory=list)

    def leave_out(self, engine: str, problem: ForerunError, task: str | None = None) -> None:
        """Note why an engine, or one task of it, has no figures."""
        words = {MissingError: "not installed", RefusedError: "not available"}
        status = words.get(type(problem), "failed")
        found = {"shape": self.shape, "engine": engine, "task": task, "status": status, "why": str(problem)}
        self.left_out.append(found)

    def bury(self, runner: Runner, problem: ForerunError) -> None:
        """Take out an engine whose process is gone, with all its figures."""
        self.runners.remove(runner)
        self.leave_out(runner.entrant.name, problem)

    def tries(self, runner: Runner, task: str, what: Mapping[str, Any]) -> float | None:
        """Seconds of a token; None, with a note, where the engine cannot or does not live on."""
        kind = task.split(maxsplit=1)[0]
        if runner not in self.runners or runner.lacks & {task, kind}:
            return None
        try:
            return _per_token(runner.child.ask(**what))
        except DiedError as problem:
            self.bury(runner, problem)
        except RefusedError as problem:
            runner.lacks.add(kind)
            self.leave_out(runner.entrant.name, problem, kind)
        except (MissingError, FailedError) as problem:
            runner.lacks.add(task)
            runner.seconds.pop(task, None)
            self.leave_out(runner.entrant.name, problem, task)
        return None


def _per_token(found: dict[str, Any]) -> float:
    if not found["tokens"]:
        raise FailedError("the text was whole at once, and there is nothing to time")
    return float(found["seconds"]) / float(found["tokens"])


def run(order: Order, peers: Sequence[Peer] = PEERS, own: Peer = OWN) -> dict[str, Any]:
    """Every shape, one after the other."""
    check(order, peers)
    threads = order.threads or threads_for(_BUFFER)
    chosen = [own, *(peer for peer in peers if not order.only or peer.name in order.only)]
    cases = [case(shape, order, entrants(chosen, order.dtypes), threads) for shape in order.shapes]
    return {
        "title": "forerun beside other engines, the same weights",
        "benchmark": "peers",
        **machine.circumstances(),
        "machine": machine.facts() | {"threads": threads},
        "settings": {
            name: value for name, value in asdict(order).items() if name not in {"work", "pythons", "threads"}
        },
        "cases": cases,
        "left_out": [found for one in cases for found in one.pop("left_out")],
    }


def check(order: Order, peers: Sequence[Peer]) -> None:
    """Refuse names that do not exist."""
    names = [peer.name for peer in peers]
    asked = (
        (order.shapes, SHAPES, "shape"),
        (order.dtypes, DTYPES, "dtype"),
        (order.only, names, "engine"),
        (order.pythons, names, "engine"),
    )
    for given, known, what in asked:
        for name in given:
            if name not in known:
                raise ConfigError(unknown("forerun bench peers", what, name, known))


def case(shape: str, order: Order, asked: Sequence[Entrant], threads: int) -> dict[str, Any]:
    """One shape: open everyone, take turns, close everyone."""
    contest = Contest(shape)
    source = pair(shape, order.work / f"{shape}-reference") if order.reference else checkpoint(shape, order.work)
    with ExitStack() as stack:
        for entrant in asked:
            _enter(contest, entrant, order, source, threads, stack)
        _warm_up(contest, order)
        speeds, others = _rounds(contest, order, threads)
    return {
        "shape": shape,
        "bandwidth_gbs": asdict(Spread.of(speeds)) if speeds else None,
        "others_cpus": round(others, 3),
        "entrants": {runner.entrant.name: _figures(runner) for runner in contest.runners},
        "ratios": list(_ratios(contest.runners, [task for task, _ in tasks(shape, order, 0)])),
        "left_out": contest.left_out,
    }


def _enter(contest: Contest, entrant: Entrant, order: Order, source: Path, threads: int, stack: ExitStack) -> None:
    """Convert what is not converted yet, then open; a note where that fails."""
    peer = entrant.peer
    if any(found["engine"] == peer.name for found in contest.left_out):
        return  # it is not installed
    python = order.pythons.get(peer.name, sys.executable)
    log = source.parent / f"{entrant.name}.log".replace(" ", "-")
    Console(stderr=True, highlight=False).print(f"{contest.shape}: opening {entrant.name}")
    try:
        engine = Engine(python, ENGINES / peer.file)
        path = _converted(engine, entrant, source, log) if peer.converts else source
        child = Child(engine, log)
        stack.callback(child.close)
        facts = child.ask("begin") | child.ask("load", path=str(path), variant=entrant.variant, threads=threads)
        facts["loaded_bytes"] = child.ask("memory")["peak_bytes"]
    except MissingError as problem:
        contest.leave_out(peer.name, MissingError(peer.remedy(str(problem), python)))
    except (RefusedError, FailedError, DiedError) as problem:
        contest.leave_out(entrant.name, problem)
    else:
        facts["file_bytes"] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        able = set(facts.pop("can"))
        runner = Runner(entrant, child, facts, lacks={*KINDS} - able)
        contest.runners.append(runner)
        if order.reference:
            _draft(contest, runner, engine, source.with_name("draft"), log)


def _draft(contest: Contest, runner: Runner, engine: Engine, source: Path, log: Path) -> None:
    """Open the draft model too, where the engine speculates; a note where that fails."""
    entrant = runner.entrant
    if "speculate" in runner.lacks:
        return
    try:
        path = _converted(engine, entrant, source, log) if entrant.peer.converts else source
        runner.child.ask("draft", path=str(path), variant=entrant.variant)
    except (MissingError, RefusedError, FailedError, DiedError) as problem:
        runner.lacks.add("speculate")
        contest.leave_out(entrant.name, problem, "speculate")


def _converted(engine: Engine, entrant: Entrant, source: Path, log: Path) -> Path:
    """The peer's own files, made once by a process that does nothing else."""

    def make(folder: Path) -> None:
        child = Child(engine, log)
        try:
            child.ask("prepare", source=str(source), target=str(folder), variant=entrant.kind)
        finally:
            child.close()

    prefix = "" if source.name == "checkpoint" else f"{source.name}-"
    return once(source.parent / f"{prefix}{entrant.peer.name}-{entrant.kind}", make)


def _rounds(contest: Contest, order: Order, threads: int) -> tuple[list[float], float]:
    """All rounds; the memory's speed in each (GB/s), and how many CPUs other programs took meanwhile."""
    buffer = np.ones(_BUFFER // 8) if native.load() is not None else None
    speeds, began, before = [], perf_counter(), _others(contest)
    for number in track(range(order.rounds), contest.shape, console=Console(stderr=True), transient=True):
        if buffer is not None:
            speeds.append(native.bandwidth(buffer, threads) / 1e9)
        _take_turns(contest, number, tasks(contest.shape, order, number))
    return speeds, max(0.0, _others(contest) - before) / (perf_counter() - began)


def _others(contest: Contest) -> float:
    """CPU seconds of everything on this machine that is not this run."""
    return busy_cpu_seconds() - process_time() - sum(cpu_seconds(r.child.process) for r in contest.runners)


def _warm_up(contest: Contest, order: Order) -> None:
    """A short round that does not count; memory is read before the single passes, which may open a model again."""
    number = -1
    _take_turns(contest, number, texts(contest.shape, order, number, _WARM_UP_TOKENS))
    for runner in list(contest.runners):
        try:
            runner.facts["peak_bytes"] = runner.child.ask("memory")["peak_bytes"]
        except DiedError as problem:
            contest.bury(runner, problem)
    _take_turns(contest, number, passes(contest.shape, order, number))
    for runner in contest.runners:
        runner.seconds.clear()


def _take_turns(contest: Contest, number: int, what: Iterable[Task]) -> None:
    """Every task by every engine; who begins moves on with each task and each round."""
    for place, (task, asked) in enumerate(what):
        everyone = list(contest.runners)
        first = (number + place) % max(len(everyone), 1)
        for runner in everyone[first:] + everyone[:first]:
            found = contest.tries(runner, task, asked)
            if found is not None:
                runner.seconds.setdefault(task, {})[number] = found


def tasks(shape: str, order: Order, number: int) -> Iterator[Task]:
    """Everything that is asked in a round, the same of everyone."""
    yield from texts(shape, order, number, order.tokens)
    yield from passes(shape, order, number)


def texts(shape: str, order: Order, number: int, tokens: int) -> Iterator[Task]:
    """Prompts to read and continue."""
    draw = Dice(shape, order, number)
    yield "decode", {"do": "decode", "prompt": draw(order.prompt), "tokens": tokens}
    yield "prefill", {"do": "prefill", "prompt": draw(order.prefill)}
    prompts = [draw(order.prompt) for _ in range(order.sequences)]
    yield "batch", {"do": "batch", "prompts": prompts, "tokens": tokens}
    for category, prompts in _written().items() if order.reference else ():
        yield f"speculate {category}", {"do": "speculate", "prompt": prompts[number % len(prompts)], "tokens": tokens}


def passes(shape: str, order: Order, number: int) -> Iterator[Task]:
    """Single passes over several rows."""
    draw = Dice(shape, order, number)
    for width in order.widths:
        yield f"width {width}", {"do": "width", "context": draw(order.context), "rows": draw(width)}


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_folder("reference")


@cache
def _written() -> Mapping[str, list[list[int]]]:
    """The project's own prompts as the bundled model reads them, by category."""
    found: dict[str, list[list[int]]] = {}
    for item in workloads.encode(workloads.load(workloads.OWN, _TEXTS), _tokenizer(), _LONGEST).items:
        found.setdefault(item.category, []).append(list(item.tokens))
    return found


class Dice:
    """Random tokens of the model's vocabulary, others in each round."""

    def __init__(self, shape: str, order: Order, number: int) -> None:
        self._vocabulary = _tokenizer().vocab_size if order.reference else SHAPES[shape][5]
        self._random = np.random.default_rng(number + 1)

    def __call__(self, count: int) -> list[int]:
        return [int(token) for token in self._random.integers(_SPECIAL, self._vocabulary, count)]


def _figures(runner: Runner) -> dict[str, Any]:
    """What is known of an entrant; tokens per second, and for widths milliseconds of a pass."""
    found: dict[str, Any] = {"engine": runner.entrant.peer.name, "dtype": runner.entrant.dtype}
    idle = runner.child.idle_cpu_seconds / max(runner.child.idle_seconds, 1e-9)
    found |= {"variant": runner.entrant.variant, **runner.facts, "idle_cpus": idle, "tasks": {}}
    for task, rounds in runner.seconds.items():
        _, _, width = task.partition("width ")
        times = list(rounds.values())
        values = [int(width) * 1e3 * t for t in times] if width else [1 / t for t in times]
        found["tasks"][task] = {"unit": "ms" if width else "tokens/s", **asdict(Spread.of(values))}
    return found


def _ratios(runners: Sequence[Runner], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Speed of forerun's first variant over the fastest peer of the same dtype, by task; above 1 forerun is faster.

    Speculation is compared with theirs, and with their plain decoding.
    """
    against = [(name, name) for name in names]
    against += [(name, "decode") for name in names if name.startswith("speculate")]
    for own in (r for r in runners if r.entrant.peer.name == OWN.name and r.entrant.leads):
        peers = [r for r in runners if r.entrant.peer.name != OWN.name and r.entrant.dtype == own.entrant.dtype]
        for task, other in against:
            able = [r for r in peers if r.seconds.get(other)]
            if not able or not own.seconds.get(task):
                continue
            best = min(able, key=lambda r: Spread.of(list(r.seconds[other].values())).median)
            theirs = best.seconds[other]
            ratios = [theirs[n] / mine for n, mine in own.seconds[task].items() if n in theirs]
            yield {
                "dtype": own.entrant.dtype,
                "forerun": own.entrant.name,
                "task": task if task == other else f"{task} over {other}",
                "best_peer": best.entrant.name,
                "ratio": asdict(Spread.of(ratios)),
            }


def show(report: dict[str, Any]) -> None:
    """Two tables for each shape, then who was left out."""
    console = paper()
    for found in report["cases"]:
        console.print(_table(found, report["settings"]))
        if found["ratios"]:
            console.print(_comparison(found))
    for line in remarks(report):
        console.print(line, markup=False)


def _table(found: dict[str, Any], settings: dict[str, Any]) -> Table:
    speed = found["bandwidth_gbs"]
    memory = f"memory reads {Spread(**speed).shown(1)} GB/s; " if speed else ""
    title = f"{found['shape']}: {memory}other programs took {found['others_cpus']:.2f} CPUs"
    table = Table(title=title, title_justify="left")
    widths = [f"width {width}" for width in settings["widths"]]
    rates = {"decode": "decode", "prefill": "prefill", "batch": f"batch of {settings['sequences']}"}
    if settings["reference"]:
        rates |= {f"speculate {category}": f"{category}, drafting" for category in workloads.OWN}
    heads = (f"{head} tok/s" for head in rates.values())
    for head in ("engine", "dtype", *heads, *(f"T({w}) ms" for w in settings["widths"]), "peak MiB"):
        table.add_column(head, justify="left" if head in {"engine", "dtype"} else "right")
    for name, entrant in found["entrants"].items():
        cells = [_cell(entrant["tasks"].get(rate), 1) for rate in rates]
        cells += [f"{entrant['tasks'][w]['median']:.2f}" if w in entrant["tasks"] else "–" for w in widths]
        peak = f"{entrant['peak_bytes'] / _MIB:.0f}" if entrant["peak_bytes"] else "–"
        table.add_row(name, entrant["dtype"], *cells, peak)
    return table


def _cell(figure: dict[str, Any] | None, digits: int) -> str:
    if figure is None:
        return "–"
    return Spread(**{name: value for name, value in figure.items() if name != "unit"}).shown(digits)


def _comparison(found: dict[str, Any]) -> Table:
    table = Table(title=f"{found['shape']}: speed over the best peer's", title_justify="left")
    for head in ("forerun", "dtype", "task", "ratio", "best peer"):
        table.add_column(head, justify="right" if head == "ratio" else "left")
    for one in found["ratios"]:
        table.add_row(one["forerun"], one["dtype"], one["task"], _cell(one["ratio"], 2), one["best_peer"])
    return table


def remarks(report: dict[str, Any]) -> list[str]:
    """Who was left out and why; whose process ran while it should have rested."""
    lines = []
    for out in report["left_out"]:
        task = f", {out['task']}" if out["task"] else ""
        lines.append(f"{out['shape']}, {out['engine']}{task}: {out['status']}: {out['why'].rstrip('.')}.")
    for found in report["cases"]:
        for name, entrant in found["entrants"].items():
            if entrant["idle_cpus"] > 0.01:  # noqa: PLR2004 - one hundredth of a core
                lines.append(f"{found['shape']}, {name}: took {entrant['idle_cpus']:.2f} CPUs while others ran.")
    return lines
