"""The command line. Its flags are the fields of Config and of Sampling; methods come from the tables.

Does not: hold a default of its own.
"""

import dataclasses
import errno
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Container, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from forerun.config import Config, read_file
from forerun.errors import ForerunError
from forerun.types import Constraint, Event, Sampling

if TYPE_CHECKING:
    from forerun.llm import LLM, Result

Command = Callable[..., Any]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that takes no more

# A name, then options up to the last one that has a value, then the text.
_NAMED = re.compile(r"([\w-]+(?::\w+=[\w.]+(?:,\w+=[\w.]+)*)?)(?:=(.*))?", re.DOTALL)
_MOUNTED = {
    **{name: f"forerun.{name}.cli:command" for name in ("bench", "study", "train", "tune")},
    "replay": "forerun.bench.cli:replay",
    "serve": "forerun.server.cli:command",
}


class _Commands(click.Group):
    """Sub-commands that other packages bring are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_MOUNTED])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MOUNTED:
            return super().get_command(ctx, cmd_name)
        module, name = _MOUNTED[cmd_name].split(":")
        return typing.cast("click.Command", getattr(import_module(module), name))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="forerun")
def program() -> None:
    """Text from language models, faster than one token per step, and provably the model's own."""


def field_options(command: Command, kind: Any, without: Container[str] = ()) -> Command:  # noqa: ANN401 - a dataclass
    """One flag per field of a dataclass whose fields are `config.option`s."""
    for f in [f for f in reversed(dataclasses.fields(kind)) if f.name not in without]:
        flag, text = f"--{f.name.replace('_', '-')}", f.metadata["help"]
        if isinstance(f.default, bool):
            command = click.option(flag, f.name, is_flag=True, default=None, help=text)(command)
        elif isinstance(f.default, tuple):
            command = click.option(flag, f.name, multiple=True, help=text)(command)
        else:
            command = click.option(flag, f.name, type=type(f.default), help=f"{text} [{f.default}]")(command)
    return command


def config_options(command: Command, without: Container[str] = ()) -> Command:
    """One flag per field of Config, and one for a file of them; `without` those that a command says in its own way."""
    command = field_options(command, Config, without)
    return click.option("--config", metavar="FILE", help="TOML with such values, as forerun tune writes it.")(command)


def sampling_options(command: Command) -> Command:
    """One flag per field of Sampling that a line of text can hold."""
    hints = typing.get_type_hints(Sampling)
    for f in reversed(dataclasses.fields(Sampling)):
        kind = next((t for t in _scalars(hints[f.name]) if t is not type(None)), None)
        flag = f"--{f.name.replace('_', '-')}"
        if kind is bool:
            command = click.option(flag, f.name, is_flag=True, default=None)(command)
        elif kind in (int, float):
            command = click.option(flag, f.name, type=kind)(command)
        elif f.name == "stop":
            command = click.option(flag, f.name, multiple=True, help="end before this text; may be repeated")(command)
        elif f.name == "constraint":
            text = "what the output must be: json_schema=@FILE, regex=TEXT, choice=a,b, json_object, ..."
            command = click.option(flag, f.name, metavar="NAME[=TEXT|=@FILE]", callback=_constraint, help=text)(command)
    return command


def _constraint(_ctx: click.Context, _flag: click.Parameter, value: str | None) -> Constraint | None:
    """NAME, NAME=TEXT or NAME=@FILE, where NAME may have options as any method has: NAME:OPTION=VALUE=TEXT."""
    if value is None:
        return None
    found = _NAMED.fullmatch(value)
    if found is None:
        raise click.UsageError(f"--constraint is {value!r}; write it as NAME=TEXT or NAME=@FILE.")
    name, text = found[1], found[2] or ""
    if not text.startswith("@"):
        return Constraint(name, text)
    try:
        return Constraint(name, Path(text[1:]).expanduser().read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, UnicodeDecodeError) as problem:
        raise click.UsageError(f"--constraint: {text[1:]!r} cannot be read ({problem}); name a text file.") from None


def _scalars(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def split(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags that were given, before the file that they name -> keywords of Config and of Sampling."""
    given = {k: v for k, v in values.items() if v is not None and v != ()}
    file = given.pop("config", None)
    config = {k: v for k, v in given.items() if k in {f.name for f in dataclasses.fields(Config)}}
    sampling = {k: v for k, v in given.items() if k not in config}
    return (config if file is None else {**read_file(file), **config}), sampling


def open_llm(config: dict[str, Any]) -> "LLM":
    """The model that the flags name."""
    from forerun.llm import LLM

    return LLM(**config)


@program.command()
@click.argument("prompt")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per text: tokens, sources, statistics.")
@click.option("--n", "count", default=1, help="Independent texts, one after the other.", show_default=True)
@click.option("--prediction", type=click.File(encoding="utf-8"), help="What the output is expected to be.")
@config_options
@sampling_options
def generate(prompt: str, *, as_json: bool, count: int, prediction: TextIO | None, **values: Any) -> None:  # noqa: ANN401
    """Continue PROMPT; '-' reads it from standard input."""
    config, sampling = split(values)
    text = sys.stdin.read() if prompt == "-" else prompt
    expected = prediction.read() if prediction is not None else ""
    llm = open_llm(config)
    if as_json or count != 1:
        results = llm.generate(text, Sampling(**sampling), count, prediction=expected)
        errors = _print_all(results, as_json=as_json)
    else:
        errors = _print_stream(llm.stream(text, Sampling(**sampling), expected))
    if not as_json:
        _warn(llm)
    if errors and not as_json:
        raise ForerunError(errors[0])


def _warn(llm: "LLM") -> None:
    """Say if texts are not the model's own."""
    if llm.engine.caveat:
        click.echo(f"forerun: {llm.engine.caveat}", err=True)


def _print_all(results: "list[Result]", *, as_json: bool) -> list[str]:
    """Every text on its own; the errors among them."""
    for result in results:
        click.echo(_as_json(result) if as_json else result.text)
    return [result.error for result in results if result.error]


def _print_stream(events: Iterator[Event]) -> list[str]:
    """Text as it comes; its error, if it ended with one."""
    errors = []
    for event in events:
        click.echo(event.text, nl=False)
        sys.stdout.flush()
        errors += [event.error] if event.error else []
    click.echo()
    return errors


def _as_json(result: "Result") -> str:
    stats = result.stats
    return json.dumps(
        {
            "text": result.text,
            "prompt_tokens": result.prompt_tokens,
            "tokens": result.tokens,
            "sources": result.sources,
            "finish_reason": result.finish_reason,
            "error": result.error,
            "seed": result.seed,
            "exact": result.caveat is None,
            "caveat": result.caveat,
            "seed_caveat": result.seed_caveat,
            "steps": stats.steps,
            "tokens_per_step": stats.tokens_per_step,
            "acceptance_rate": stats.acceptance_rate,
            "acceptance_per_position": stats.acceptance_per_position,
            "seconds": result.seconds,
        }
    )


@program.command()
@click.option("--system", default="", help="What the model is told before the conversation.")
@config_options
@sampling_options
def chat(system: str, **values: Any) -> None:  # noqa: ANN401
    """Talk with the model; Ctrl-C ends an answer, an empty line or Ctrl-D the conversation."""
    config, sampling = split(values)
    from forerun.terminal import converse

    llm = open_llm(config)
    _warn(llm)
    converse(llm, Sampling(**sampling), system)


@program.command()
@click.argument("prompt", default="Once upon a time")
@click.option("--repeats", default=3, help="Timed runs of each kind, interleaved.", show_default=True)
@config_options
@sampling_options
def demo(prompt: str, repeats: int, **values: Any) -> None:  # noqa: ANN401
    """Continue PROMPT, coloured by who guessed each token, and compare with plain decoding."""
    config, sampling = split(
        {"temperature": 0.0, "max_tokens": 200, **{k: v for k, v in values.items() if v is not None}}
    )
    from forerun.terminal import show

    show(open_llm(config), prompt, Sampling(**sampling), repeats)


@program.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dtype", default="int8", show_default=True, help="int8, int4 or bf16.")
@click.option("--scales", help="mse (least squares) or nearest (largest weight, as at load) [mse].")
@click.option(
    "--calibrate", multiple=True, type=click.Path(path_type=Path), help="Round for this text; may be repeated."
)
def quantize(model: str, out: Path, **values: Any) -> None:  # noqa: ANN401
    """Write MODEL with packed weights into the folder OUT, which loads at the speed of reading."""
    from forerun.quantize import Job
    from forerun.quantize import quantize as run

    found = run(model, out, Job(**values))
    click.echo(f"wrote {out}: {found['bytes'] / 2**20:.1f} MiB of {found['dtype']}", err=True)
    click.echo(json.dumps(found))


@program.command()
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT.jsonl", type=click.Path(path_type=Path))
@config_options
def batch(source: Path, out: Path, **values: Any) -> None:  # noqa: ANN401
    """Answer the requests of IN.jsonl, in OpenAI's batch format, into OUT.jsonl; what is there already is skipped.

    Requests with a common start run together (scheduler batchllm, cache paged), unless told otherwise.
    """
    from forerun.batch import run

    click.echo(json.dumps(run(source, out, split(values)[0])))


@program.group()
def datastore() -> None:
    """Texts that drafters retrieve from."""


@datastore.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", default=Config.model, show_default=True, help="Whose tokenizer reads them.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The datastore's file.")
@click.option("--dense", is_flag=True, help="Have the model read them, for the drafter 'dresd'.")
def build(*, files: tuple[Path, ...], model: str, out: Path, dense: bool) -> None:
    """Tokenize FILES, one document each, and write them with their suffix array, or with --dense their states."""
    from forerun.datastore import make, make_dense

    found = (make_dense if dense else make)(files, model, out)
    click.echo(f"wrote {out}: {found['tokens']} tokens of {found['documents']} documents", err=True)
    click.echo(json.dumps(found))


@program.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--markdown", is_flag=True, help="Print the table of docs/methods.md.")
def methods(*, as_json: bool, markdown: bool) -> None:
    """List every registered method with its facts and options."""
    from forerun import methods as tables

    if as_json or markdown:
        click.echo(tables.as_json() if as_json else tables.as_markdown(), nl=as_json)
        return
    for row in tables.listing():
        key = f"  [{row['key']}]" if row["key"] else ""
        click.echo(f"{row['family']:<10} {row['name']:<16} {row['summary']}{key}")


def main() -> None:
    """Entry point: every error that forerun raises on purpose is one line, and exit code 2."""
    try:
        program.main(standalone_mode=False)
    except ForerunError as problem:
        click.echo(f"forerun: {problem}", err=True)
        sys.exit(2)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nforerun: interrupted; nothing was left half-written.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody left to tell
        sys.exit(141)
    except OSError as problem:
        if problem.errno not in _FULL:
            raise
        click.echo(
            f"forerun: nothing more can be written ({problem.strerror}); make room there and run the same again.",
            err=True,
        )
        sys.exit(2)
