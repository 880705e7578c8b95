"""`forerun study jacobi`: when each position of a text first became right under Jacobi iteration (2305.10427, DDGviz).

All positions after a prompt are guessed at once, and every pass renews each from those before it, until nothing
changes: that is the greedy text. A position is right in a pass where it has its final token, and settled from the pass
on after which it keeps it. Plain decoding settles one position per pass.
Does not: time anything; draw tokens; stop at an end of text, behind which the model goes on as in `ignore_eos`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

import numpy as np
from rich.table import Table

from forerun.bench import machine
from forerun.bench.paper import paper, png, sheet
from forerun.bench.report import as_json
from forerun.bench.workloads import OWN, encode, load
from forerun.drafting.ahead import filler
from forerun.files import write_whole
from forerun.models.contract import Model
from forerun.models.load import folder_of, load_model
from forerun.models.tokenizer import Tokenizer
from forerun.quantize import one_pass
from forerun.types import Ints

_NOTE = (
    "Passes until nothing changes, positions that are settled per pass (plain decoding: 1), and the share of positions"
    " that were right once before all positions before them were settled."
)


@dataclass(frozen=True)
class Order:
    """What to iterate."""

    model: str = "reference"
    categories: Sequence[str] = OWN
    prompts: int = 2  # per category
    tokens: int = 32  # positions that are guessed at once


def run(order: Order) -> dict[str, Any]:
    """A case per prompt."""
    model, tokenizer = load_model(order.model), Tokenizer.from_folder(folder_of(order.model))
    prompts = load(order.categories, order.prompts)
    items = encode(prompts, tokenizer, model.info.context_length - order.tokens).items
    cases = [
        {"category": item.category, "prompt": item.number, **figures(trajectory(model, item.tokens, order.tokens))}
        for item in items
    ]
    return {
        "title": "Jacobi iteration: when each position became right",
        "benchmark": "jacobi",
        **machine.circumstances(),
        "machine": machine.facts(model.info),
        "positions": order.tokens,
        "notes": [_NOTE],
        "cases": cases,
    }


def trajectory(model: Model, prompt: Sequence[int], positions: int) -> Ints:
    """The window before the first pass and after each, [1 + passes, positions]; the last pass changed nothing."""
    windows = [filler(prompt, positions)]
    while len(windows) < 2 or windows[-1] != windows[-2]:  # noqa: PLR2004 - nothing to compare with
        logits = one_pass(model, [*prompt, *windows[-1][:-1]], positions)
        windows.append(logits.argmax(-1).tolist())
    return np.array(windows)


def figures(windows: Ints) -> dict[str, Any]:
    """What a trajectory shows: per position the pass in which it was first right, and the one that settled it."""
    right = windows == windows[-1]
    passes = len(windows) - 2  # the last one only showed that nothing changes
    settled = len(windows) - np.argmin(right[::-1], axis=0)
    settled = np.where(right.all(axis=0), 0, settled)
    first = np.argmax(right, axis=0)
    before = np.maximum.accumulate(np.concatenate([[0], settled[:-1]]))
    return {
        "passes": passes,
        "positions_per_pass": len(first) / max(passes, 1),
        "ahead": float((first < before).mean()),
        "first_right": first.tolist(),
        "settled": settled.tolist(),
        "right": ["".join("#" if here else "." for here in row) for row in right[:-1]],
    }


def show(found: dict[str, Any]) -> None:
    """A row per prompt."""
    table = Table(title=found["title"], caption=found["notes"][0], title_justify="left", caption_justify="left")
    for name in ("category", "prompt", "passes", "positions per pass", "right ahead"):
        table.add_column(name, justify="left" if name == "category" else "right")
    for c in found["cases"]:
        table.add_row(
            c["category"], str(c["prompt"]), str(c["passes"]), f"{c['positions_per_pass']:.2f}", f"{c['ahead']:.0%}"
        )
    paper().print(table)


def write(found: dict[str, Any], folder: File) -> list[File]:
    """jacobi.json and jacobi.png in `folder`."""
    contents = {"jacobi.json": as_json(found).encode() + b"\n", "jacobi.png": plot(found)}
    for name, content in contents.items():
        write_whole(folder / name, content, "free space there, or name another folder with --out")
    return [folder / name for name in contents]


def plot(found: dict[str, Any]) -> bytes:
    """One panel per prompt: passes downwards, positions to the right; dark where settled, light where only right."""
    cases = found["cases"]
    columns = min(3, len(cases))
    lines = -(-len(cases) // columns)
    figure = sheet(4 * columns, 4 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes, case in zip(panels, cases, strict=False):
        right = np.array([[cell == "#" for cell in row] for row in case["right"]])
        settled = np.arange(len(right))[:, None] >= np.array(case["settled"])
        axes.imshow(right * 0.4 + (right & settled) * 0.5, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.plot(range(right.shape[1]), range(1, right.shape[1] + 1), "--", color="black", linewidth=0.8)
        axes.set_ylim(len(right) - 0.5, -0.5)
        axes.set_title(f"{case['category']} {case['prompt']}")
        axes.set_xlabel("position")
        axes.set_ylabel("pass")
    return png(figure)
