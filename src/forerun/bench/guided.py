"""`forerun bench guided`: what constraints and searches bring, each beside what is written without it.

On the bundled model, sampled at temperature 1 with the same seeds in turn: texts of a language that another parser
takes, attributes that exist, denied phrases, and what denying them costs. Of searches: a span's log-likelihood beside
the span that greedy choices lead to and the best one of all, the distance of samples to the law that a constraint
leaves of a toy model (by enumeration), and required phrases with the text's log-likelihood beside a beam search.
Does not: say how good texts are; a text that parses may be nonsense.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from forerun.bench import constrained, machine, searched
from forerun.bench.figures import Beside
from forerun.bench.paper import paper
from forerun.bench.speedup import model_facts, open_plain
from forerun.llm import LLM

HEADER = ("method", "work", "figure", "without", "with", "over")
NOTE = (
    "Without: the same prompts and seeds, held by nothing; a span by greedy choices among those that stay in the "
    "prompt; samples by masks alone; a beam search that does not know of the phrases."
)


@dataclass(frozen=True)
class Order:
    """How much to measure."""

    texts: constrained.Order = field(default_factory=constrained.Order)
    searches: searched.Order = field(default_factory=searched.Order)


def run(order: Order) -> dict[str, Any]:
    """Every method, one after the other."""
    plain, notes = open_plain(constrained.PLAIN)
    return {
        "title": "What constraints and searches bring",
        "benchmark": "guided",
        **machine.circumstances(),
        "machine": machine.facts(plain.model.info),
        "model": model_facts(plain, None),
        "cases": [asdict(case) for case in _cases(order, plain)],
        "notes": [NOTE, *notes],
    }


def _cases(order: Order, plain: LLM) -> Iterator[Beside]:
    yield from constrained.measure(plain, order.texts)
    yield from searched.measure(plain, order.searches)


def rows(report: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The cells below HEADER."""
    for case in report["cases"]:
        numbers = (f"{round(case[name], 4):.4g}" for name in ("without", "within"))
        yield (case["method"], case["work"], case["figure"], *numbers, case["over"])


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(*HEADER, title=report["title"], title_justify="left")
    for cells in rows(report):
        table.add_row(*cells)
    console = paper()
    console.print(table)
    for note in report["notes"]:
        console.print(note, markup=False)
