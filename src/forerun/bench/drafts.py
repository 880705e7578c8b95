"""`forerun bench drafts`: every drafter that needs no second model and no training, by category of work.

Two measurements stand in one table. `target`: the model writes, as in `forerun bench`, so that drafters see its logits;
there is a speed-up over plain decoding; every prompt comes once, because some would know the answer the second time.
`replay`: answers that are known beforehand are drafted for, as in `forerun replay`: work that a small model cannot do.
There the speed-up is that of a target whose passes cost what the model's cost, which are measured first, and that reads
no prompt.
Does not: tune a drafter to a category; all have their defaults and the same budget of nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from forerun.bench import replay, speedup, tasks, workloads
from forerun.bench.figures import Spread
from forerun.bench.paper import paper
from forerun.build import costs_of
from forerun.drafters import DRAFTERS
from forerun.errors import ConfigError
from forerun.models.tokenizer import Tokenizer
from forerun.types import Costs, Need

_SECONDS = 8.0  # of measuring what passes cost
_COSTLY = frozenset({Need.SECOND_MODEL, Need.DATASTORE, Need.TRAINING})
HEADER = ("drafter", "how", "category", "tokens/step", "over", "speed-up", "nodes/step", "drafting, µs per step")


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    drafters: Sequence[str] = ()  # none: all that are free
    categories: Sequence[str] = workloads.OWN
    prompts: int = 5  # per category
    nodes: int = 16
    against: str = "ngram"
    tokenizer: str = "reference"  # of the replayed texts
    data: Path | None = None
    inflate: str | None = None


def free() -> list[str]:
    """Rows of the table that need neither a second model nor a datastore nor training."""
    return [name for name, member in DRAFTERS.items() if not member.facts.needs & _COSTLY]


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Both measurements; `config` and `sampling` are the keywords that were given."""
    asked = list(dict.fromkeys((order.against, *(order.drafters or free()))))
    data = workloads.folder_of((tasks.BOOK,), order.data)
    notes = [] if data else [f"{tasks.BOOK} is not there: replay has neither grammar nor extract nor prose."]
    keywords = {"planner": f"fixed:nodes={order.nodes}", **config}
    costs = _costs(keywords, order.inflate)
    lap = speedup.Order(order.categories, order.prompts, 1, asked, order.data, order.inflate)
    found = speedup.run(lap, keywords, sampling)
    written = list(_written(found["drafters"]))
    tokenizer = replay.open_tokenizer(order.tokenizer)
    records = tasks.load(tokenizer, order.prompts, data)
    replayed, left_out = _replayed(asked, records, order.nodes, tokenizer, costs)
    return {
        **{name: found[name] for name in ("machine", "date", "command", "model", "convention", "divergences")},
        "title": f"Drafts without a second model, at most {order.nodes} nodes per step",
        "benchmark": "drafts",
        "settings": {**found["settings"], "nodes": order.nodes, "tokenizer": order.tokenizer, "against": order.against},
        "cases": _compared([*written, *replayed], order.against),
        "notes": [
            *notes,
            *found["notes"],
            *dict.fromkeys(left_out),
            *_busy(found["machine"]),
            f"Relative: tokens per step over those of {order.against}.",
            "Speed-ups of replay follow from what passes cost, measured, and from the time of drafting.",
        ],
    }


def _costs(keywords: Mapping[str, Any], inflate: str | None) -> Costs:
    """Of the target's passes, behind a short context."""
    plain, _ = speedup.open_plain({"max_requests": 1, **keywords}, inflate)
    return costs_of(plain.config, plain.model, plain.engine.limits.context_length, _SECONDS)


def _busy(facts: Mapping[str, Any]) -> list[str]:
    """What to think of times that were taken beside other programs."""
    if facts["load_average"] <= facts["cores"]:
        return []
    load = f"The load average was {facts['load_average']} on {facts['cores']} cores"
    return [f"{load}: speed-ups and times are disturbed, tokens per step are not."]


def _written(drafters: Mapping[str, Mapping[str, Any]]) -> Sequence[dict[str, Any]]:
    """Cases of a target that writes."""
    return [
        {
            "drafter": name,
            "how": "target",
            "category": category,
            "tokens_per_step": f["tokens_per_step"],
            "nodes_per_step": (f["tokens_per_step"] - 1) / f["acceptance_rate"] if f["acceptance_rate"] else 0.0,
            "speedup": f["speedup"],
            "drafting_us": 1e3 * f["ms_per_step"]["draft"],
        }
        for name, categories in drafters.items()
        for category, f in categories.items()
        if category != replay.ALL
    ]


def _replayed(
    asked: Sequence[str], records: Sequence[replay.Record], nodes: int, tokenizer: Tokenizer, costs: Costs
) -> tuple[list[dict[str, Any]], list[str]]:
    """Cases of known answers, and why some drafters have none."""
    cases, left_out = list[dict[str, Any]](), list[str]()
    for spelled in asked:
        try:
            found = replay.race([spelled], records, nodes, tokenizer, costs)
        except ConfigError as problem:
            left_out.append(f"Not replayed: {problem}")
            continue
        cases += [
            {
                "drafter": spelled,
                "how": "replay",
                "category": case["category"],
                "tokens_per_step": case["tokens_per_step"],
                "nodes_per_step": case["nodes_per_step"],
                "speedup": asdict(Spread.of([1e6 * costs.of(1) / (case["pass_us_per_token"] + case["us_per_token"])])),
                "drafting_us": case["propose_us_per_step"] + case["observe_us_per_step"],
            }
            for case in found
            if case["category"] != replay.ALL
        ]
    return cases, left_out


def _compared(cases: Sequence[dict[str, Any]], against: str) -> list[dict[str, Any]]:
    """Every case beside that of the drafter that all are counted against."""
    base = {(c["how"], c["category"]): c["tokens_per_step"] for c in cases if c["drafter"] == against}
    return [{**case, "over": case["tokens_per_step"] / base[case["how"], case["category"]]} for case in cases]


def show(report: dict[str, Any]) -> None:
    """The table, then the notes."""
    console = paper()
    table = Table(title=report["title"], caption=report["convention"], title_justify="left", caption_justify="left")
    for name in HEADER:
        text = f"over {report['settings']['against']}" if name == "over" else name
        table.add_column(text, justify="left" if name in HEADER[:3] else "right", overflow="fold")
    for case in report["cases"]:
        table.add_row(*(cell.replace("[", "\\[") for cell in cells(case)))
    console.print(table)
    for note in report["notes"]:
        console.print(note, markup=False)


def cells(case: dict[str, Any]) -> tuple[str, ...]:
    """One row below HEADER."""
    speedup_ = case["speedup"]
    return (
        *(case[name] for name in ("drafter", "how", "category")),
        f"{case['tokens_per_step']:.2f}",
        f"{case['over']:.2f}",
        f"{speedup_['median']:.2f}" if speedup_ else "–",
        f"{case['nodes_per_step']:.1f}",
        f"{case['drafting_us']:.0f}",
    )
