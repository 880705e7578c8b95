"""What `forerun tune` found: a table, a plot, and the config file of the fastest setting.

Does not: measure.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from forerun.bench.figures import Spread
from forerun.bench.paper import paper, png, sheet
from forerun.files import write_whole
from forerun.tune.search import Report

FIGURES = ("tokens_per_step", "rows_per_step", "pass_ms", "drafting_ms", "loop_ms")
HEADER = (
    *("drafter", "planner", "tokens per step", "rows", "pass ms", "drafting ms", "loop ms"),
    *("predicted", "measured", "off"),
)


def show(found: Report) -> None:
    """A row per setting, the fastest first."""
    table = Table(title=found["title"], caption="\n".join(remarks(found)), title_justify="left", caption_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name in HEADER[:2] else "right")
    for row in ranked(found):
        figures = (f"{row[name]:.2f}" for name in FIGURES)
        spread = (Spread(**row[name]).shown() for name in ("predicted", "measured"))
        table.add_row(row["drafter"], row["planner"], *figures, *spread, f"{row['error']:+.0%}")
    paper().print(table)


def ranked(found: Report) -> list[dict[str, Any]]:
    """Rows by measured speed-up."""
    return sorted(found["rows"], key=lambda row: -row["measured"]["median"])


def remarks(found: Report) -> list[str]:
    """What the table's figures are."""
    within = f"{found['within']} of {len(found['rows'])} predictions are within 10 % of what was measured."
    return [
        "Predicted: tokens per step x (T(1) + loop) / (T(rows) + drafting + loop), by measured costs of passes and by",
        "what a step took beside them in the warm-up; medians over prompts and rounds, with the middle half of them.",
        within,
        *found["notes"],
    ]


def write(found: Report, config: Mapping[str, Any], out: Path) -> list[Path]:
    """The config file, and the plot beside it."""
    contents = {out: toml(found, config).encode(), out.with_suffix(".png"): picture(found)}
    for path, content in contents.items():
        write_whole(path, content, "name another file with --out")
    return list(contents)


def toml(found: Report, config: Mapping[str, Any]) -> str:
    """What `forerun generate --config` reads: the values that were given, and the fastest setting."""
    rows = [row for row in found["rows"] if {name: row[name] for name in found["best"]} == found["best"]]
    said = f"{Spread(**rows[0]['measured']).shown()}x plain decoding" if rows else "nothing was faster"
    machine, settings = found["machine"], found["settings"]
    facts = f"{machine['cpu']}, {machine['cores']} cores, {machine['device']}, forerun {machine['forerun']}"
    lines = [
        f"Written by {found['command']}",
        f"on {found['date']}; {facts}.",
        f"Measured on {settings['prompts']} prompts: {said}.",
        *(found["notes"][:1] if found["model"]["inflated"] else ()),  # says what that means
    ]
    values = {**config, **found["best"]}
    comments = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return comments + "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def picture(found: Report) -> bytes:
    """Measured over predicted speed-up, with the tenth on either side that a prediction may be off; a PNG."""
    figure = sheet(7, 7)
    axes = figure.subplots()
    for number, row in enumerate(ranked(found), 1):
        across, up = row["predicted"], row["measured"]
        errors = [[[d["median"] - d["low"]], [d["high"] - d["median"]]] for d in (across, up)]
        label = f"{number}: {row['drafter']}, {row['planner']}"
        axes.errorbar(across["median"], up["median"], errors[1], errors[0], marker="o", capsize=2, label=label)
        axes.annotate(str(number), (across["median"], up["median"]), xytext=(5, 5), textcoords="offset points")
    most = 1.1 * max(row[name]["high"] for row in found["rows"] for name in ("predicted", "measured"))
    axes.plot([0, most], [0, most], color="black", linewidth=1)
    axes.fill_between([0, most], [0, most / 1.1], [0, most / 0.9], color="black", alpha=0.1)
    axes.set(xlim=(0, most), ylim=(0, most), xlabel="predicted speed-up", ylabel="measured speed-up")
    axes.legend(fontsize="small", loc="upper left")
    return png(figure)
