"""`forerun bench sampling`: what it takes to make chances of rows of logits, by sampling, rows and vocabulary.

Logits are made up: normal, three wide. Behind each row stand 1,000 tokens of a prompt and 500 of an output, for
penalties. Beside forerun, by turns, transformers' own processors with the same parameters.
The processor's own time is given as well: it does not see other programs on a busy machine.
Does not: draw (`forerun bench verify` does), or run a model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.generation import logits_process as peer

from forerun.bench import machine
from forerun.bench.figures import clocks, told
from forerun.bench.paper import paper
from forerun.sampling import Shaper
from forerun.types import Sampling

PROMPT, WRITTEN = 1000, 500  # tokens
WIDE = 3.0  # standard deviation of the logits
_WARM_UP = 2
SAMPLINGS = {
    "temperature=0.7": Sampling(temperature=0.7),
    "top_k=50": Sampling(top_k=50),
    "top_p=0.9": Sampling(top_p=0.9),
    "min_p=0.05": Sampling(min_p=0.05),
    "typical_p=0.9": Sampling(typical_p=0.9),
    "temperature=0.7, top_k=50, top_p=0.9": Sampling(temperature=0.7, top_k=50, top_p=0.9),
    "repetition_penalty=1.1": Sampling(repetition_penalty=1.1),
}
ENGINES = ("forerun", "transformers")
Way = Callable[[], torch.Tensor]  # to chances [rows, vocab]


@dataclass(frozen=True)
class Order:
    """What to measure."""

    vocabularies: Sequence[int] = (32_000, 152_000)
    rows: Sequence[int] = (1, 8)
    rounds: int = 20


def theirs(s: Sampling) -> peer.LogitsProcessorList:
    """Transformers' processors for the same sampling, in its order."""
    found = peer.LogitsProcessorList()
    if s.repetition_penalty != 1:
        found.append(peer.RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    if s.temperature != 1:
        found.append(peer.TemperatureLogitsWarper(s.temperature))
    if s.top_k:
        found.append(peer.TopKLogitsWarper(s.top_k))
    if s.top_p < 1:
        found.append(peer.TopPLogitsWarper(s.top_p))
    if s.min_p:
        found.append(peer.MinPLogitsWarper(s.min_p))
    if s.typical_p < 1:
        found.append(peer.TypicalLogitsWarper(s.typical_p))
    return found


def processed(chain: peer.LogitsProcessorList, texts: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """What transformers makes of logits [rows, vocab] behind texts [rows, tokens]."""
    return torch.softmax(chain(texts, logits), -1)


def measure(vocab: int, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Every sampling, by forerun and by transformers in turns."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=generator) * WIDE
    tokens = torch.randint(vocab, (PROMPT + WRITTEN,), generator=generator)
    texts, text = tokens.repeat(rows, 1), tokens.tolist()
    ways: dict[tuple[str, str], Way] = {}
    for name, sampling in SAMPLINGS.items():
        ways[name, "forerun"] = partial(Shaper(sampling, text, PROMPT).probabilities, logits, lambda _: ())
        ways[name, "transformers"] = partial(processed, theirs(sampling), texts, logits)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in ways}
    for _ in track(range(rounds + _WARM_UP), f"{rows} x {vocab}", console=Console(stderr=True), transient=True):
        for key, way in ways.items():
            began, on_cpu = perf_counter(), thread_time()
            way()
            times[key].append((perf_counter() - began, thread_time() - on_cpu))
    return [
        {
            "sampling": name,
            "vocabulary": vocab,
            "rows": rows,
            **{engine: clocks(times[name, engine][_WARM_UP:]) for engine in ENGINES},
        }
        for name in SAMPLINGS
    ]


def run(order: Order) -> dict[str, Any]:
    """All rows of all vocabularies."""
    torch.set_num_threads(1)  # others' load would show
    with torch.inference_mode():
        cases = [c for vocab in order.vocabularies for rows in order.rows for c in measure(vocab, rows, order.rounds)]
    return {
        "title": "Time to make chances of logits",
        "benchmark": "sampling",
        **machine.circumstances(),
        "machine": machine.facts(),
        "rounds": order.rounds,
        "cases": cases,
    }


def show(found: dict[str, Any]) -> None:
    """A table for people."""
    caption = "µs: median (middle half) / of the processor's own time"
    shown = Table(
        "sampling", "rows", "vocabulary", *ENGINES, title=found["title"], caption=caption, title_justify="left"
    )
    for c in found["cases"]:
        shown.add_row(c["sampling"], str(c["rows"]), str(c["vocabulary"]), *(told(c[engine]) for engine in ENGINES))
    paper().print(shown)
