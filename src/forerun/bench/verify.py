"""`forerun bench verify`: what judging one draft costs, by rule, shape of the draft and vocabulary.

Rows of p and q are given, float32 on the host, as the engine has them on a CPU; what is timed is the verifier alone.
They are made up: probabilities fall with a token's rank by a power (Zipf), q's logits are p's with noise. Shapes: a
`tree` of 16 nodes (four siblings, and three below each), drawn i.i.d. from q; a `chain` of 16; and the tree once more
for a greedy request, where p is one token. Rules take turns, another draft in every round.
The processor's own time is given as well: it does not see other programs on a busy machine.
Does not: form p, run a model, or say which rule accepts more (`forerun study acceptance` does).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine
from forerun.bench.figures import clocks, told
from forerun.bench.paper import paper
from forerun.rng import CounterRng, Purpose
from forerun.testing import Told
from forerun.types import Dist, Draft, Floats
from forerun.verifiers import VERIFIERS

SHAPES = {"tree": (4, 3), "chain": (1,) * 16, "greedy": (4, 3)}  # siblings below every node of a level
_FALL, _NOISE = 1.2, 0.8  # of probability with rank; of q's logits
_WARM_UP = 3


@dataclass(frozen=True)
class Order:
    """What to measure."""

    vocabularies: Sequence[int] = (32_000, 152_000)
    rounds: int = 60


@dataclass(frozen=True)
class Case:
    """A draft and the target's distribution after each of its nodes."""

    draft: Draft
    target: Told


def made_up(vocab: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A pair of p and q."""
    logits = -_FALL * np.log(1 + rng.permutation(vocab)) + rng.normal(size=vocab)
    noisy = logits + _NOISE * rng.normal(size=vocab)
    p, q = (np.exp(row) / np.exp(row).sum() for row in (logits, noisy))
    return p.astype(np.float32), q.astype(np.float32)


def case(shape: str, pairs: Sequence[tuple[Floats, Floats]], seed: int) -> Case:
    """A draft drawn anew; nodes share a few pairs, so that rows fit into memory."""
    rng, tokens, parents, drawn = CounterRng(seed), list[int](), list[int](), list[Dist | None]()
    level = [-1]
    for depth, width in enumerate(SHAPES[shape]):
        first = len(tokens)
        for parent in level:
            q = Dist(pairs[(parent + 1) % len(pairs)][1])
            for _ in range(width):
                tokens.append(rng.categorical(q, Purpose.DRAFT, depth, len(tokens)))
                parents.append(parent)
                drawn.append(q)
        level = list(range(first, len(tokens)))
    target = {node: Dist(pairs[(node + 1) % len(pairs)][0]) for node in range(-1, len(tokens))}
    if shape == "greedy":
        target = {node: Dist.point(int(p.probs.argmax())) for node, p in target.items()}
    return Case(Draft(tuple(tokens), tuple(parents), tuple(drawn)), Told(target.__getitem__))


def measure(shape: str, vocab: int, rounds: int) -> list[dict[str, Any]]:
    """Every rule on the same drafts."""
    rng = np.random.default_rng(vocab)
    pairs = [made_up(vocab, rng) for _ in range(6)]
    rules = {name: rule(rule.toy()) for name, rule in VERIFIERS.items() if rule.facts.exact}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in rules}
    accepted = dict.fromkeys(rules, 0)
    for turn in track(range(rounds + _WARM_UP), f"{shape} {vocab}", console=Console(stderr=True), transient=True):
        one = case(shape, pairs, turn)
        for name, rule in rules.items():
            numbers = CounterRng(rounds + turn)
            numbers.begin(1, 0)
            began, on_cpu = perf_counter(), thread_time()
            verdict = rule.verify([one.draft], [one.target], [numbers])[0]
            times[name].append((perf_counter() - began, thread_time() - on_cpu))
            accepted[name] += len(verdict.path) if turn >= _WARM_UP else 0
    return [
        {
            "rule": name,
            "shape": shape,
            "vocabulary": vocab,
            **clocks(times[name][_WARM_UP:]),
            "accepted": accepted[name] / rounds,
        }
        for name in rules
    ]


def run(order: Order) -> dict[str, Any]:
    """Every shape at every vocabulary."""
    torch.set_num_threads(1)  # others' load would show
    cases = [row for vocab in order.vocabularies for shape in SHAPES for row in measure(shape, vocab, order.rounds)]
    return {
        "title": "Time to judge a draft of 16 nodes, p given",
        "benchmark": "verify",
        **machine.circumstances(),
        "machine": machine.facts(),
        "rounds": order.rounds,
        "cases": cases,
    }


def show(found: dict[str, Any]) -> None:
    """A table for people: one row per rule and vocabulary."""
    caption = "µs: median (middle half) / of the processor's own time"
    table = Table(title=found["title"], caption=caption, title_justify="left")
    for name in ("rule", "vocabulary", *SHAPES):
        table.add_column(name, justify="left" if name == "rule" else "right")
    times = {(c["rule"], c["vocabulary"], c["shape"]): told(c) for c in found["cases"]}
    for rule, vocab in dict.fromkeys((rule, vocab) for rule, vocab, _ in times):
        table.add_row(rule, str(vocab), *(times[rule, vocab, shape] for shape in SHAPES))
    paper().print(table)
