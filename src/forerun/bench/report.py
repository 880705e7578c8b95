"""One report, four faces: a table in the terminal, a JSON object, a plot, and a page that needs no other file.

Does not: compute anything that the JSON does not hold.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Console
from rich.table import Table

from forerun.bench.figures import Spread
from forerun.bench.paper import paper, png, sheet
from forerun.files import write_whole

HEADER = (
    "drafter",
    "category",
    "tokens/s",
    "speed-up",
    "tokens/step",
    "accepted",
    "per position",
    "ms per step: draft / target / verify / other",
    "equal",
)
Report = dict[str, Any]


def rows(report: Report) -> Iterator[tuple[str, ...]]:
    """The cells below HEADER, one row per drafter and category."""
    for drafter, categories in report["drafters"].items():
        for category, f in categories.items():
            if category == "all" and len(categories) == 2:  # noqa: PLR2004 - one category and its sum are the same
                continue
            yield (
                drafter,
                category,
                Spread(**f["tokens_per_second"]).shown(0),
                Spread(**f["speedup"]).shown() if drafter != "plain" else "1.00",
                f"{f['tokens_per_step']:.2f}",
                f"{f['acceptance_rate']:.0%}" if f["acceptance_per_position"] else "–",
                " ".join(f"{share:.2f}" for share in f["acceptance_per_position"]) or "–",
                " / ".join(f"{ms:.2f}" for ms in f["ms_per_step"].values()),
                equal(f["equality"]),
            )


def equal(equality: Mapping[str, Any]) -> str:
    """How many texts are plain decoding's, in a few words."""
    if not equality["compared"]:
        return "not compared"
    words = [f"{equality['equal']}/{equality['texts']}"]
    if equality["ties"]:
        words.append(f"{equality['ties']} tied")
    if equality["divergences"]:
        words.append(f"{equality['divergences']} DIVERGED")
    return ", ".join(words)


def remarks(report: Report) -> list[str]:
    """What a reader of the table must know."""
    found = [*report["notes"]]
    for drafter, categories in report["drafters"].items():
        whole = categories["all"]
        if not whole["equality"]["compared"]:
            found.append(f"{drafter}: {whole['equality']['why']}.")
        if whole["draft_failures"]:
            found.append(
                f"{drafter}: {whole['draft_failures']} drafts failed, and plain decoding went on without them."
            )
    for d in report["differences"]:
        where = f"{d['drafter']}, {d['category']} prompt {d['prompt']}, token {d['position']}"
        gap = f"{d['gap']:.2g}" if d["gap"] is not None else "no"
        tokens = f"plain {d['expected']}, forerun {d['found']}; gap {gap}, allowed {d['margin']:.2g}"
        found.append(f"{d['kind'].upper()}: {where}: {tokens}.")
    return found


def show(report: Report, console: Console | None = None) -> None:
    """The table, then the remarks."""
    console = console or paper()
    table = Table(title=report["title"], caption=report["convention"], title_justify="left", caption_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name in HEADER[:2] else "right", overflow="fold")
    last = ""
    for cells in rows(report):
        if last and cells[0] != last:
            table.add_section()
        last = cells[0]
        table.add_row(*(cell.replace("[", "\\[") for cell in cells))
    console.print(table)
    for remark in remarks(report):
        console.print(remark, markup=False, style="bold red" if remark.startswith("DIVERGENCE") else None)


def as_json(report: Report) -> str:
    """One line; a number that JSON does not have becomes null."""
    return json.dumps(_finite(report), ensure_ascii=True, allow_nan=False)


def _finite(value: Any) -> Any:  # noqa: ANN401 - anything JSON holds
    if isinstance(value, dict):
        return {str(key): _finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(report: Report, folder: Path) -> list[Path]:
    """bench.json, bench.png and bench.html in `folder`."""
    picture = plot(report)
    contents = {
        "bench.json": as_json(report).encode() + b"\n",
        "bench.png": picture,
        "bench.html": as_html(report, picture).encode(),
    }
    for name, content in contents.items():
        write_whole(folder / name, content, "free space there, or name another folder with --out")
    return [folder / name for name in contents]


def plot(report: Report) -> bytes:
    """Speed-up with its middle half, and tokens per step, per category and drafter; a PNG."""
    drafted = {name: table for name, table in report["drafters"].items() if name != "plain"}
    categories = list(next(iter(report["drafters"].values())))
    figure = sheet(max(8.0, 1.2 * len(categories) * max(len(drafted), 1)), 4.5)
    left, right = figure.subplots(1, 2)
    for number, (name, table) in enumerate(drafted.items()):
        places, width = _places(len(categories), number, len(drafted))
        spreads = [Spread(**table[c]["speedup"]) for c in categories]
        reach = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
        label = name.replace("$", r"\$")
        left.bar(places, [s.median for s in spreads], width, yerr=reach, capsize=3, label=label)
        right.bar(places, [table[c]["tokens_per_step"] for c in categories], width, label=label)
    for axes, title in ((left, "speed-up over plain decoding"), (right, "tokens per step, bonus included")):
        axes.axhline(1, color="black", linewidth=1, linestyle="--")
        axes.set_title(title)
        axes.set_xticks(range(len(categories)), categories, rotation=20, ha="right")
    if drafted:
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(drafted))
    return png(figure)


def _places(count: int, number: int, drafters: int) -> tuple[Sequence[float], float]:
    """Where one drafter's bars stand, and how wide they are."""
    width = 0.8 / drafters
    return [i - 0.4 + width * (number + 0.5) for i in range(count)], width


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{ report.title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
code { background: #f4f4f4; padding: .1rem .3rem; }
img { max-width: 100%; }
.divergence { color: #b00020; font-weight: bold; }
</style>
<h1>{{ report.title }}</h1>
<p><code>{{ report.command }}</code></p>
<p>{{ report.date }}{% for name, value in report.machine.items() %} · {{ name }} {{ value }}{% endfor %}</p>
<p>Model {{ report.model.name }}, {{ report.model.weight_bytes }} bytes of weights. {{ report.convention }}.
Medians, with the middle half of the runs in brackets.</p>
<table>
<tr>{% for name in header %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
<img alt="Speed-up and tokens per step per category" src="data:image/png;base64,{{ picture }}">
<ul>
{% for remark in remarks %}<li{% if remark.startswith("DIVERGENCE") %} class="divergence"{% endif %}>{{ remark }}</li>
{% endfor %}</ul>
</html>
"""


def as_html(report: Report, picture: bytes) -> str:
    """A page without scripts or links; every value is escaped."""
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(_PAGE)
    return page.render(
        report=report,
        header=HEADER,
        rows=list(rows(report)),
        remarks=remarks(report),
        picture=base64.b64encode(picture).decode(),
    )
