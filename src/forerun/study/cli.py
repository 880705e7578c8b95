"""`forerun study` and its sub-commands; the last line of each one's output is a JSON object.

Does not: hold a default of its own beyond those of the studies' dataclasses.
"""

from pathlib import Path
from typing import Any

import click


@click.group("study")
def command() -> None:
    """Compute what methods could reach, apart from any speed."""


@command.command("acceptance")
@click.option("--model", help="Record p and q of this model and its drafter [made-up pairs].")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Of both.")
@click.option("--law", type=click.Choice(["zipf", "dirichlet"]), default="zipf", show_default=True, help="If made up.")
@click.option("--vocabulary", type=click.IntRange(16), default=4096, show_default=True, help="Tokens, if made up.")
@click.option("--pairs", type=click.IntRange(1), default=24, show_default=True, help="Pairs, or places in prompts.")
@click.option("--draws", type=click.IntRange(2), default=16, show_default=True, help="Drafts of a pair and shape.")
@click.option("--drafts", default="1,2,4,8", show_default=True, help="Numbers of drafts; with commas.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON and plot.")
def acceptance(drafts: str, out: Path | None, **values: Any) -> None:  # noqa: ANN401
    """Compute what every verifier accepts of the same drafts, against the theoretical optimum."""
    from forerun.bench.report import as_json
    from forerun.study import acceptance as study

    found = study.run(study.Order(drafts=[int(count) for count in drafts.split(",")], **values))
    study.show(found)
    for path in study.write(found, out) if out is not None else ():
        click.echo(f"wrote {path}", err=True)
    click.echo(as_json(found))


@command.command("costs")
def costs() -> None:
    """Compute what a tree's acceptance is worth on a GPU, by its public figures, beside what Spec-Bench measured."""
    from forerun.bench.report import as_json
    from forerun.study import costs as study

    found = study.run()
    study.show(found)
    click.echo(as_json(found))


@command.command("jacobi")
@click.option("--model", default="reference", show_default=True, help="Whose text.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--prompts", type=click.IntRange(1), default=2, show_default=True, help="Prompts per category.")
@click.option("--tokens", type=click.IntRange(2), default=32, show_default=True, help="Guessed at once.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON and picture.")
def jacobi(categories: str, out: Path | None, **values: Any) -> None:  # noqa: ANN401
    """Draw when each position first became right under Jacobi iteration."""
    from forerun.bench.report import as_json
    from forerun.study import jacobi as study

    found = study.run(study.Order(categories=[name.strip() for name in categories.split(",")], **values))
    study.show(found)
    for path in study.write(found, out) if out is not None else ():
        click.echo(f"wrote {path}", err=True)
    click.echo(as_json(found))
