"""`forerun train ...` on the command line.

Does not: hold a default of its own; recipes do.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import click

from forerun.errors import TrainError


@click.group("train")
def command() -> None:
    """Train the small reference models."""


@command.command("lm")
@click.argument("recipe")
@click.option("--data", "data_folder", type=click.Path(path_type=Path), help="Folder with the training data.")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Checkpoints and log [runs/NAME].")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the finished model [RUN/model].")
@click.option("--resume", is_flag=True, help="Continue the run in --run from its last checkpoint.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. schedule.steps=100.")
def train_language_model(
    recipe: str,
    data_folder: Path | None,
    run_folder: Path | None,
    out: Path | None,
    pairs: tuple[str, ...],
    *,
    resume: bool,
) -> None:
    """Train a language model by RECIPE: a TOML file or the name of a bundled one."""
    # Imported here: --help must not wait for torch.
    from forerun.train.lm import train_lm

    overrides = dict(parse_pair(pair) for pair in pairs)
    folder = train_lm(recipe, overrides, data_folder=data_folder, run_folder=run_folder, out=out, resume=resume)
    click.echo(f"model written to {folder}")


@command.command("written")
@click.argument("recipe")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--data", "data_folder", type=click.Path(path_type=Path), help="Folder with the training data.")
@click.option("--tokens", type=click.IntRange(1), default=4_000_000, show_default=True, help="That are written in all.")
@click.option("--length", type=click.IntRange(1), default=160, show_default=True, help="Tokens of a text, at most.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. seed=2.")
def write_texts(recipe: str, out: Path, pairs: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401
    """Let the teacher of RECIPE write texts into the file OUT, for `--set distil.written=OUT`."""
    from forerun.train.recipe import load
    from forerun.train.written import train_written

    count = train_written(load(recipe, dict(parse_pair(pair) for pair in pairs)), out, **values)
    click.echo(f"{count:,} tokens written to {out}")


@command.command("judge")
@click.argument("model")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--text", "texts", multiple=True, required=True, type=click.Path(path_type=Path), help="May be repeated.")
@click.option("--tokens", type=click.IntRange(1), default=65536, show_default=True, help="Of all texts together.")
@click.option("--layer", default=-1, show_default=True, help="Whose hidden states are read; -1 is the last.")
@click.option("--seed", default=0, show_default=True, help="Of the guesses.")
def train_judge_head(model: str, out: Path, **values: Any) -> None:  # noqa: ANN401
    """Train the head of verifier 'judge' for MODEL and its companion, and write it to the file OUT."""
    from forerun.train.judge import Job, train_judge

    found = train_judge(model, out, Job(**values))
    click.echo(f"head written to {out}", err=True)
    click.echo(json.dumps(found))


@command.command("lengths")
@click.argument("model")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--text", "texts", multiple=True, required=True, type=click.Path(path_type=Path), help="May be repeated.")
@click.option("--tokens", type=click.IntRange(1), default=65536, show_default=True, help="Of all texts together.")
@click.option("--layer", default=-1, show_default=True, help="Whose hidden states are read; -1 is the last.")
def train_lengths_predictor(model: str, out: Path, **values: Any) -> None:  # noqa: ANN401
    """Train the predictor of planner 'adaeagle' for MODEL and its companion, and write it to the file OUT."""
    from forerun.train.judge import Job
    from forerun.train.lengths import train_lengths

    found = train_lengths(model, out, Job(**values))
    click.echo(f"predictor written to {out}", err=True)
    click.echo(json.dumps(found))


@command.command("stopping")
@click.argument("model")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--text", "texts", multiple=True, required=True, type=click.Path(path_type=Path), help="May be repeated.")
@click.option("--tokens", type=click.IntRange(1), default=65536, show_default=True, help="Of all texts together.")
@click.option("--layer", default=-1, show_default=True, help="Whose hidden states are read; -1 is the last.")
@click.option("--seed", default=0, show_default=True, help="Of the texts that the target writes.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. tree=disco or weight=1.")
def train_stopping_network(model: str, out: Path, pairs: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401
    """Train the network of tree 'specdec-pp' or 'disco' for MODEL and its companion, and write it to the file OUT."""
    from forerun.train.judge import Job
    from forerun.train.recipe import build
    from forerun.train.stopping import Recipe, train_stopping

    recipe = build(Recipe, dict(parse_pair(pair) for pair in pairs), "forerun train stopping")
    found = train_stopping(model, out, Job(**values), recipe)
    click.echo(f"network written to {out}", err=True)
    click.echo(json.dumps(found))


@command.command("consistency")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--text", "texts", multiple=True, required=True, type=click.Path(path_type=Path), help="May be repeated.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a key, e.g. steps=100 or noise=4.")
def train_consistent_model(model: str, out: Path, texts: tuple[Path, ...], pairs: tuple[str, ...]) -> None:
    """Teach a copy of MODEL to guess several tokens at once (CLLM; MSN with noise), and write it to the folder OUT."""
    from forerun.train.consistency import Job, train_consistency
    from forerun.train.recipe import build

    job = build(Job, dict(parse_pair(pair) for pair in pairs), "forerun train consistency")
    found = train_consistency(model, out, texts, job)
    click.echo(f"model written to {out}", err=True)
    click.echo(json.dumps(found))


@command.command("export")
@click.argument("recipe")
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def export_checkpoint(recipe: str, run_folder: Path, out: Path) -> None:
    """Write the last checkpoint of RUN_FOLDER, trained by RECIPE, as the model folder OUT."""
    from forerun.train.lm import export_run

    click.echo(f"model written to {export_run(recipe, run_folder, out)}")


@command.command("average")
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("shares", nargs=-1, required=True, metavar="FOLDER=SHARE...")
def average_models(out: Path, shares: tuple[str, ...]) -> None:
    """Write the folder OUT: the weighted mean of models that grew from one another."""
    from forerun.train.average import average

    average({Path(folder): share for folder, share in map(parse_share, shares)}, out)
    click.echo(f"model written to {out}")


@command.command("evaluate")
@click.argument("recipe")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", "data_folder", type=click.Path(path_type=Path), help="Folder with the training data.")
def evaluate_model(recipe: str, model: Path, data_folder: Path | None) -> None:
    """Loss (and acceptance, where RECIPE names a teacher) of the folder MODEL on the held-out documents of RECIPE."""
    from forerun.train.lm import evaluate

    evaluate(recipe, model, data_folder)


def parse_share(pair: str) -> tuple[str, float]:
    folder, _, share = pair.rpartition("=")
    try:
        return folder, float(share)
    except ValueError:
        raise TrainError(f"{pair!r} is not FOLDER=SHARE; write for example runs/a=0.5.") from None


def parse_pair(pair: str) -> tuple[str, object]:
    """KEY=VALUE with a TOML value; what is not TOML is a string."""
    key, equals, value = pair.partition("=")
    if not equals:
        message = f"--set {pair!r} has no '='; write KEY=VALUE, for example schedule.steps=100."
        raise TrainError(message)
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value
