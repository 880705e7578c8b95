"""`forerun bench stores`: what it costs to read a token into a large store of texts, and to draft one from it.

Every drafter that stands on such a store holds the same made-up documents: half of them by a power law (Zipf), half an
earlier one with some tokens replaced. Then it drafts along further documents of that kind; a proposal includes reading
what came since the last one. The processor's own time is given as well: it does not see other programs.
Does not: say how good the drafts are; made-up text only has to be as large and as repetitive as real text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from rich.table import Table

from forerun.bench import machine
from forerun.bench.figures import Spread
from forerun.bench.paper import paper
from forerun.build import setup_for
from forerun.config import Config, choose
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import Drafter
from forerun.kernels import native
from forerun.kernels.suffixes import END, build
from forerun.models.toy import toy_by_name
from forerun.rng import CounterRng
from forerun.stores import tokenfile
from forerun.stores.corpus import KIND
from forerun.types import Context, Sampling, Setup

DOCUMENT, REPLACED, VOCAB = 512, 0.05, 32_000
FALL = 1.2  # of probability with rank
NODES, STRIDE = 16, 4  # drafted at most, and read between two drafts
GOAL_PROPOSED, GOAL_OBSERVED = 30.0, 20.0  # microseconds per token
Ids = list[int]


@dataclass(frozen=True)
class Order:
    """What to measure."""

    tokens: int = 1_000_000
    rounds: int = 20


@dataclass(frozen=True)
class Filled:
    """A drafter that holds everything, and what that took."""

    drafter: Drafter
    seconds: float
    on_cpu: float


def documents(count: int) -> Iterator[Ids]:
    """Made-up documents."""
    rng, earlier = np.random.default_rng(0), list[Ids]()
    while len(earlier) < count:
        fresh = rng.zipf(FALL, DOCUMENT) % VOCAB
        if earlier and len(earlier) % 2:
            old = np.array(earlier[rng.integers(len(earlier))])
            fresh = np.where(rng.random(DOCUMENT) < REPLACED, fresh, old)
        earlier.append(fresh.tolist())
        yield earlier[-1]


def timed(make: Callable[[], Drafter]) -> Filled:
    """What making a drafter took."""
    began, on_cpu = perf_counter(), thread_time()
    return Filled(make(), perf_counter() - began, thread_time() - on_cpu)


def learned(texts: Sequence[Ids], setup: Setup) -> Filled:
    """A drafter that saw every document as an output."""

    def make() -> Drafter:
        drafter: Drafter = opened(f"suffix-decoding:room={2 * DOCUMENT * len(texts)}", setup)
        for text in texts:
            drafter.stop(asked(drafter, [0], text))
        return drafter

    return timed(make)


def stored(texts: Sequence[Ids], setup: Setup, folder: Path) -> Iterator[tuple[str, Filled]]:
    """Drafters that read a datastore; the time of the first includes making its suffix array."""
    file = folder / "datastore"

    def rest() -> Drafter:
        tokens = np.array([token for text in texts for token in (*text, END)], np.int32)
        facts = {"tokenizer": tokenfile.mark_of(setup.open_spelling(""))}
        tokenfile.write(file, KIND, facts, [tokens, build(tokens)], "make room")
        return opened(f"rest:store=({file})", setup)

    yield "rest", timed(rest)
    yield "sam-decoding", timed(lambda: opened(f"sam-decoding:corpus=({file})", setup))


def opened(spelled: str, setup: Setup) -> Drafter:
    """A drafter with these options."""
    choice = choose(DRAFTERS, spelled)
    drafter: Drafter = choice.member(choice.options, setup)
    return drafter


def asked(drafter: Drafter, prompt: Ids, more: Ids) -> Context:
    """A request that has written `more`."""
    context = Context(0, [*prompt], len(prompt), Sampling(), CounterRng(0))
    context = replace(context, state=drafter.start(context))
    context.tokens.extend(more)  # type: ignore[attr-defined] # the engine's list
    return context


def drafted(drafter: Drafter, texts: Sequence[Ids]) -> dict[str, Any]:
    """Microseconds per proposal and per proposed token along these documents."""
    times, on_cpu, nodes = list[float](), list[float](), 0
    for text in texts:
        context = asked(drafter, text[:STRIDE], [])
        for at in range(STRIDE, DOCUMENT, STRIDE):
            began, mark = perf_counter(), thread_time()
            nodes += len(drafter.propose([context], [NODES])[0])
            on_cpu.append(1e6 * (thread_time() - mark))
            times.append(1e6 * (perf_counter() - began))
            context.tokens.extend(text[at : at + STRIDE])  # type: ignore[attr-defined]
    per_token = {"us_per_proposed": sum(times) / max(nodes, 1), "cpu_us_per_proposed": sum(on_cpu) / max(nodes, 1)}
    return {"us": asdict(Spread.of(times)), "nodes": nodes / len(times), **per_token}


def run(order: Order) -> dict[str, Any]:
    """Every drafter on the same documents."""
    torch.set_num_threads(1)
    setup = replace(setup_for(Config(), toy_by_name("toy:0")), vocab=VOCAB)
    count = order.tokens // DOCUMENT
    texts = list(documents(count + order.rounds))
    known, further = texts[:count], texts[count:]
    cases = []
    with TemporaryDirectory() as folder:
        for name, filled in (("suffix-decoding", learned(known, setup)), *stored(known, setup, Path(folder))):
            read = {"us_per_observed": 1e6 * filled.seconds / order.tokens}
            read["cpu_us_per_observed"] = 1e6 * filled.on_cpu / order.tokens
            cases.append({"drafter": name, **read, **drafted(filled.drafter, further)})
    return {
        "title": f"Drafting from {order.tokens} stored tokens",
        "benchmark": "stores",
        **machine.circumstances(),
        "machine": machine.facts(),
        "kernels": native.describe(),
        "goals": {"us_per_proposed": GOAL_PROPOSED, "us_per_observed": GOAL_OBSERVED},
        "cases": cases,
    }


def show(found: dict[str, Any]) -> None:
    """A table for people."""
    caption = "µs per token: all time / the processor's own. Observed: filling the store, its suffix array included."
    table = Table(title=found["title"], caption=caption, title_justify="left")
    for name in ("drafter", "observed", "proposed", "a proposal, µs", "its tokens"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    for case in found["cases"]:
        pairs = [
            f"{case[f'us_per_{what}']:.1f} / {case[f'cpu_us_per_{what}']:.1f}{_missed(found, case, what)}"
            for what in ("observed", "proposed")
        ]
        table.add_row(case["drafter"], *pairs, Spread(**case["us"]).shown(1), f"{case['nodes']:.2f}")
    paper().print(table)


def _missed(found: dict[str, Any], case: dict[str, Any], what: str) -> str:
    return "" if case[f"us_per_{what}"] < found["goals"][f"us_per_{what}"] else " missed"
