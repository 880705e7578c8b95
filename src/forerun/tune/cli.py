"""`forerun tune`; the last line of its output is a JSON object.

Does not: hold a default of its own beyond those of the search.
"""

from functools import partial
from pathlib import Path
from typing import Any

import click

from forerun.bench.cli import budgets
from forerun.cli import config_options, sampling_options, split


@click.command("tune")
@click.argument("model")
@click.option("--prompts", type=click.Path(path_type=Path), required=True, help="One per line, or .jsonl.")
@click.option("--drafter", "drafters", multiple=True, help="One more, as in draft-model:depth=4; may be repeated.")
@click.option("--nodes", help="Budgets of these per step, with commas [4,8].")
@click.option("--only", is_flag=True, help="No others than these.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Rounds per prompt.")
@click.option("--inflate", metavar="SIZE", help="Measure at the cost of a bigger model: 350M, 1B.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="forerun.toml",
    show_default=True,
    help="Config file to write; the plot goes beside it.",
)
@partial(config_options, without=("model", "drafter"))
@sampling_options
def command(model: str, nodes: str | None, out: Path, **values: Any) -> None:  # noqa: ANN401
    """Find the fastest drafter, tree and budget for MODEL on one's own prompts, and write it to a config file.

    Passes are profiled; settings run in turns with plain decoding; what costs predict is shown beside what was
    measured. Then: forerun generate PROMPT --config forerun.toml.
    """
    from forerun.bench.report import as_json
    from forerun.tune import report, search

    own = {name: values.pop(name) for name in ("prompts", "drafters", "only", "repeats", "inflate")}
    config, sampling = split(values)
    config = {**config, "model": search.place(model)}
    found = search.tune(search.Order(nodes=budgets("nodes", nodes) if nodes else (), **own), config, sampling)
    report.show(found)
    for path in report.write(found, config, out):
        click.echo(f"wrote {path}", err=True)
    click.echo(as_json(found))
