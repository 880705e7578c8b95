"""`forerun bench` and its sub-commands; the last line of each one's output is a JSON object.

Exit codes: 0; 1 for outputs that diverge from plain decoding; 2 for what cannot be run.
Does not: hold a default of its own beyond those of the benchmarks' dataclasses.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from forerun.cli import config_options, sampling_options, split
from forerun.config import KV_DTYPES, Config

Command = Callable[..., Any]


def several_drafters(command: click.Command) -> None:
    """Let `--drafter` be given several times; elsewhere it is one."""
    for i, parameter in enumerate(command.params):
        if isinstance(parameter, click.Option) and parameter.name == "drafter":
            text = "who guesses, as in draft-model:depth=4; may be repeated, for one row each [auto]"
            command.params[i] = click.Option(["--drafter"], multiple=True, help=text)


def shared_options(command: Command) -> Command:
    """What is run, and where reports go."""
    for option in (
        click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON, plot and page."),
        click.option("--inflate", metavar="SIZE", help="Measure at the cost of a bigger model: 350M, 1B."),
        click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets."),
        click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Rounds per prompt."),
        click.option("--prompts", type=click.IntRange(1), default=5, show_default=True, help="Prompts per category."),
        click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas."),
    ):
        command = option(command)
    return command


def python_option(default: str) -> Callable[[Command], Command]:
    """Which interpreter an engine runs in."""
    text = "Interpreter that has an engine installed, as in llama.cpp=venv/bin/python; may be repeated"
    return click.option("--python", "pythons", metavar="ENGINE=PATH", multiple=True, help=f"{text} [{default}].")


@click.group("bench", invoke_without_command=True)
@shared_options
@config_options
@sampling_options
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> None:  # noqa: ANN401
    """Measure speed-up against plain decoding, by category of prompts.

    Categories: story, chat, code; and where their files are present spec_bench, eagle_eval, humaneval, or a part of
    one as in spec_bench/qa. Sub-commands measure other things.
    """
    if ctx.invoked_subcommand is not None:
        given = [n for n in values if ctx.get_parameter_source(n) is click.core.ParameterSource.COMMANDLINE]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            raise click.UsageError(f"{flag} stands before {ctx.invoked_subcommand!r}; write it after the sub-command.")
        return
    from forerun.bench import report, speedup

    found = speedup.run(*_order(values))
    report.show(found)
    _finish(found, values["out"])
    if found["divergences"]:
        click.echo(f"forerun: {found['divergences']} texts diverge from plain decoding; see above.", err=True)
        sys.exit(1)


def _order(values: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Flags -> the order, and the keywords of Config and of Sampling."""
    from forerun.bench.speedup import Order

    own = {name: values[name] for name in ("prompts", "repeats", "data", "inflate")}
    categories = words(values["categories"])
    rest = {k: v for k, v in values.items() if k not in {*own, "categories", "out", "drafter"}}
    config, sampling = split(rest)
    drafters = values["drafter"] or (config.get("drafter", Config.drafter),)
    return Order(categories=categories, drafters=drafters, **own), config, sampling


def _finish(found: dict[str, Any], folder: Path | None) -> None:
    """Write the files if a folder was named, then the last line."""
    from forerun.bench import report

    if folder is not None:
        for path in report.write(found, folder):
            click.echo(f"wrote {path}", err=True)
    click.echo(report.as_json(found))


@command.command("overhead")
@click.option("--steps", type=click.IntRange(10), default=400, show_default=True, help="Timed steps per case.")
@click.option("--tokenizer", metavar="MODEL", help="Decode with this model's tokenizer instead of a table of words.")
def overhead(steps: int, tokenizer: str | None) -> None:
    """Measure what the engine's loop costs per step, without a model."""
    from forerun.bench import overhead as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(steps, tokenizer)
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("compare-transformers")
@shared_options
@config_options
@sampling_options
def compare_transformers(**values: Any) -> None:  # noqa: ANN401
    """Measure transformers' generate, plain and assisted, beside forerun; greedy, on the same weights."""
    from forerun.bench import peers
    from forerun.bench.report import as_json

    found = peers.run(*_order(values))
    peers.show(found)
    click.echo(as_json(found))
    if found["divergences"]:
        click.echo(f"forerun: {found['divergences']} texts diverge from transformers' greedy; see above.", err=True)
        sys.exit(1)


@command.command("memory")
@config_options
@sampling_options
def memory(**values: Any) -> None:  # noqa: ANN401
    """Measure the peak memory of loading and generating, against weights and cache."""
    from forerun.bench import memory as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(*split(values))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("roofline")
@click.option("--shapes", default="125M,360M", show_default=True, help="1M, 125M, 360M, 1.1B, 8B; with commas.")
@click.option("--dtype", "dtypes", default="int8,bf16", show_default=True, help="How weights are kept; with commas.")
@click.option("--context", type=click.IntRange(1), default=256, show_default=True, help="Tokens already in the cache.")
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True, help="Passes of every width.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads of a pass [one per core].")
@click.option("--widths", default="1,2,4,8,16", show_default=True, help="Rows of a pass; with commas.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it runs.")
@click.option(
    "--passes",
    type=click.Choice(["auto", "padded", "invariant"]),
    default="auto",
    show_default=True,
    help="Passes of fixed shape, through the engine's runner; on a GPU always.",
)
@click.option("--kv-dtype", type=click.Choice(KV_DTYPES), default="auto", show_default=True, help="Of keys and values.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File for a plot of T(k)/T(1), as PNG.")
def roofline(shapes: str, dtypes: str, widths: str, out: Path | None, **values: Any) -> None:  # noqa: ANN401
    """Measure a pass over one row and over several, against the memory's own speed."""
    from forerun.bench import roofline as benchmark
    from forerun.bench.paper import keep
    from forerun.bench.report import as_json

    order = benchmark.Order(shapes.split(","), dtypes.split(","), budgets("widths", widths), **values)
    found = benchmark.run(order)
    benchmark.show(found)
    if out is not None:
        keep(benchmark.plot(found), out)
    click.echo(as_json(found))


@command.command("trees")
@click.option("--tree", "trees", multiple=True, help="One more, as in sequoia:price=0; beside all that there are.")
@click.option("--setting", "settings", multiple=True, help="A whole drafter, at the same budgets.")
@click.option("--only", is_flag=True, help="No others than these.")
@click.option("--against", default="static", show_default=True, help="The tree over which leads are counted.")
@click.option("--nodes", default="8,16", show_default=True, help="Budgets per step, with commas.")
@click.option("--depth", type=click.IntRange(1), default=6, show_default=True, help="Levels of a tree.")
@click.option("--price", type=click.FloatRange(0), default=0.1, show_default=True, help="A drafter's pass in target's.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="File for what trees are made of.")
@click.option(
    "--prompts", type=click.IntRange(1), default=5, show_default=True, help="Per category; as many to fit on."
)
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Seeds per prompt.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def trees(**values: Any) -> None:  # noqa: ANN401
    """Measure tokens per step of every tree at equal budgets, and the acceptance that fixed trees are made of."""
    from forerun.bench import trees as benchmark
    from forerun.bench.report import as_json

    named = [f.name for f in fields(benchmark.Order)]
    own = {name: values[name] for name in named}
    own["nodes"] = budgets("nodes", own["nodes"])
    own["categories"] = words(own["categories"])
    config, sampling = split({k: v for k, v in values.items() if k not in own})
    found = benchmark.run(benchmark.Order(**own), config, sampling)
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("planners")
@click.option("--setting", "settings", multiple=True, help="One more, as in tetris:nodes=2; may be repeated.")
@click.option("--only", is_flag=True, help="No others than these and fixed lengths.")
@click.option("--nodes", default="1,2,3,4,6,8", show_default=True, help="Fixed lengths, with commas.")
@click.option("--batches", default="1,4,8,16", show_default=True, help="Requests that run together, with commas.")
@click.option(
    "--price", type=click.FloatRange(0), default=0.05, show_default=True, help="A level of drafts, in passes."
)
@click.option("--waves", type=click.IntRange(1), default=2, show_default=True, help="Batches that wait in line.")
@click.option("--inflate", metavar="SIZE", help="Measure by the clock as well, at the cost of a bigger model: 350M.")
@click.option("--prompts", type=click.IntRange(1), default=8, show_default=True, help="Per category.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Orders of the requests.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def planners(**values: Any) -> None:  # noqa: ANN401
    """Measure every planner beside fixed lengths, at several sizes of the batch, by what passes cost."""
    from forerun.bench import planners as benchmark
    from forerun.bench.report import as_json

    named = [f.name for f in fields(benchmark.Order)]
    own = {name: values[name] for name in named}
    own |= {name: budgets(name, own[name]) for name in ("nodes", "batches")}
    own["categories"] = words(own["categories"])
    config, sampling = split({k: v for k, v in values.items() if k not in own})
    found = benchmark.run(benchmark.Order(**own), config, sampling)
    benchmark.show(found)
    click.echo(as_json(found))


def _compare_planners(benchmark: Any, counts: str, names: Sequence[str], values: dict[str, Any]) -> None:  # noqa: ANN401
    """Run a benchmark of planners; `counts` is its flag of whole numbers, `names` are its other ones."""
    from forerun.bench.report import as_json

    own = {name: values[name] for name in names} | {counts: budgets(counts, values[counts])}
    own["categories"] = words(values["categories"])
    config, sampling = split({k: v for k, v in values.items() if k not in {*own, "settings"}})
    order = benchmark.Order(**own, settings=values["settings"] or benchmark.Order.settings)
    found = benchmark.run(order, config, sampling)
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("harm")
@click.option("--setting", "settings", multiple=True, help="A planner, as in tetris:nodes=2; may be repeated [auto].")
@click.option("--batches", default="1,4,16", show_default=True, help="Requests that run together, with commas.")
@click.option("--prompts", type=click.IntRange(1), default=8, show_default=True, help="Per category.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Orders of the requests.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def harm(**values: Any) -> None:  # noqa: ANN401
    """Measure what planners lose where drafts are always wrong, and where texts are random, by what passes cost."""
    from forerun.bench import harm as benchmark

    _compare_planners(benchmark, "batches", ("prompts", "repeats", "data"), values)


@command.command("lockstep")
@click.option("--setting", "settings", multiple=True, help="A planner, as in fixed:nodes=2; may be repeated [auto].")
@click.option("--requests", default="1,2,4,8,16,32,64", show_default=True, help="That run at a time, with commas.")
@click.option("--steps", type=click.IntRange(1), default=1024, show_default=True, help="Of every engine.")
@click.option("--prompts", type=click.IntRange(1), default=16, show_default=True, help="Per category.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def lockstep(**values: Any) -> None:  # noqa: ANN401
    """Measure planners beside plain decoding by the clock: engines with so many requests, in turn."""
    from forerun.bench import lockstep as benchmark

    _compare_planners(benchmark, "requests", ("steps", "prompts", "data"), values)


@command.command("rehearse")
@click.option("--setting", "settings", multiple=True, help="A planner, as in fixed:nodes=2; may be repeated [auto].")
@click.option("--requests", default="1,2,4,8,16", show_default=True, help="Clients, with commas.")
@click.option("--clock", default="dear", show_default=True, help="What steps take: rows are dear or cheap.")
@click.option("--answers", type=click.IntRange(1), default=192, show_default=True, help="Of each load.")
@click.option("--repeats", type=click.IntRange(1), default=4, show_default=True, help="Loads.")
@click.option("--noise", type=click.FloatRange(0), default=1.0, show_default=True, help="Of times, in the usual one.")
@click.option("--wrong", is_flag=True, help="No draft comes true.")
@click.option("--prompts", type=click.IntRange(1), default=32, show_default=True, help="Per category.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def rehearse(**values: Any) -> None:  # noqa: ANN401
    """Measure planners on recorded drafts, by a made-up clock: thousands of steps in a second."""
    from forerun.bench import rehearse as benchmark

    names = ("clock", "answers", "repeats", "noise", "wrong", "prompts", "data")
    _compare_planners(benchmark, "requests", names, values)


@command.command("choices")
@click.option(
    "--price", type=click.FloatRange(0), default=0.05, show_default=True, help="A small model's pass, in target's."
)
@click.option("--prompts", type=click.IntRange(1), default=8, show_default=True, help="Per category.")
@click.option("--repeats", type=click.IntRange(1), default=10, show_default=True, help="Orders of the texts.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def choices(**values: Any) -> None:  # noqa: ANN401
    """Measure drafters beside each other and beside a bandit over them, by what passes cost."""
    from forerun.bench import choices as benchmark
    from forerun.bench.report import as_json

    own = {name: values[name] for name in ("prompts", "repeats", "price", "data")}
    categories = words(values["categories"])
    drafters = values["drafter"] or benchmark.USUAL
    rest = {k: v for k, v in values.items() if k not in {*own, "categories", "drafter"}}
    config, sampling = split(rest)
    found = benchmark.run(benchmark.Order(drafters, categories, **own), config, sampling)
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("schedulers")
@click.option("--trace", default="mixed", show_default=True, help="mixed, azure-code, azure-conv or mooncake.")
@click.option("--loads", default="0.6,0.9", show_default=True, help="Work that arrives in a second; with commas.")
@click.option("--requests", type=click.IntRange(2), default=300, show_default=True, help="The first of the trace.")
@click.option("--setting", "settings", multiple=True, help="One more, as in sarathi:step_ms=30; may be repeated.")
@click.option("--only", is_flag=True, help="No others than these.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the traces.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File for a plot, as PNG.")
def schedulers(loads: str, out: Path | None, **values: Any) -> None:  # noqa: ANN401
    """Measure times to and between tokens under every scheduler, by what passes cost; and every eviction."""
    from forerun.bench import schedulers as benchmark
    from forerun.bench.paper import keep
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order(loads=shares("loads", loads), **values))
    benchmark.show(found)
    if out is not None:
        keep(benchmark.plot(found), out)
    click.echo(as_json(found))


@command.command("drafts")
@click.option("--nodes", type=click.IntRange(1), default=16, show_default=True, help="Of a draft, at most.")
@click.option("--against", default="ngram", show_default=True, help="The drafter that others are counted against.")
@click.option("--tokenizer", metavar="MODEL", default="reference", show_default=True, help="Of replayed texts.")
@click.option("--inflate", metavar="SIZE", help="Measure at the cost of a bigger model: 350M, 1B.")
@click.option("--prompts", type=click.IntRange(1), default=5, show_default=True, help="Prompts per category.")
@click.option("--categories", default="story,chat,code", show_default=True, help="What the model writes, with commas.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def drafts(**values: Any) -> None:  # noqa: ANN401
    """Measure tokens per step of every drafter without a second model, by category of work.

    The model writes stories, chats and code; answers that are known beforehand are replayed. Without --drafter: all.
    """
    from forerun.bench import drafts as benchmark
    from forerun.bench.report import as_json

    own = {"drafters": values.pop("drafter")}
    own |= {f.name: values.pop(f.name) for f in fields(benchmark.Order) if f.name not in own}
    own["categories"] = words(own["categories"])
    config, sampling = split(values)
    found = benchmark.run(benchmark.Order(**own), config, sampling)
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("quality")
@click.argument("models", nargs=-1, required=True, metavar="MODEL [PACKED]...")
@click.option("--text", type=click.Path(path_type=Path), required=True, help="A text to predict, UTF-8.")
@click.option("--dtype", "dtypes", default="int8,int4", show_default=True, help="How weights are rounded; with commas.")
@click.option("--kv-dtype", "kv_dtypes", default="", help="Each of them also with keys and values in fp32, bf16, int8.")
@click.option("--tokens", type=click.IntRange(2), default=8192, show_default=True, help="Of the text, from its start.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads of a pass [one per core].")
@python_option("forerun alone")
def quality(models: tuple[str, ...], pythons: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401
    """Measure perplexity and divergence from the exact MODEL, per precision and for folders PACKED of it.

    An engine whose interpreter is named reads the same text, with its own weights of those precisions.
    """
    from forerun.bench import quality as benchmark
    from forerun.bench.report import as_json

    for name in ("dtypes", "kv_dtypes"):
        values[name] = [word.strip() for word in values[name].split(",") if word.strip()]
    found = benchmark.run(benchmark.Order(models, pythons=_pairs(pythons), **values))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("fidelity")
@click.option("--setting", "settings", multiple=True, help="A method with options; may be repeated.")
@click.option("--only", is_flag=True, help="No other methods than these.")
@click.option("--categories", default="story,chat,code", show_default=True, help="Which prompts, with commas.")
@click.option("--prompts", type=click.IntRange(1), default=5, show_default=True, help="Prompts per category.")
@click.option("--samples", type=click.IntRange(1), default=4, show_default=True, help="Texts per prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Length of a text.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
def fidelity(settings: tuple[str, ...], categories: str, **values: Any) -> None:  # noqa: ANN401
    """Measure how far every method that is not exact goes from the model's distribution, and what it gains.

    Total variation on toy models, by enumeration; log-likelihood, greedy choices and tokens per step on the model.
    """
    from forerun.bench import fidelity as benchmark
    from forerun.bench.report import as_json

    own = {name: values.pop(name) for name in ("only", "prompts", "samples", "max_tokens", "data")}
    names = words(categories)
    found = benchmark.run(benchmark.Order(settings, categories=names, **own), split(values)[0])
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("guided")
def guided() -> None:
    """Measure what constraints and searches bring, each beside what is written without it."""
    from forerun.bench import guided as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order())
    benchmark.show(found)
    click.echo(as_json(found))


@click.command("replay")
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--drafter", "drafters", multiple=True, default=["ngram"], help="Who guesses; may be repeated [ngram].")
@click.option("--nodes", type=click.IntRange(1), default=8, show_default=True, help="Of a draft, at most.")
@click.option("--tokenizer", metavar="MODEL", default="reference", show_default=True, help="Whose tokens texts become.")
def replay(**values: Any) -> None:  # noqa: ANN401
    """Measure what drafters would save on the texts in FILES, without a model.

    FILES hold JSON lines with prompt and output, or plain text.
    """
    from forerun.bench import replay as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order(**values))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("verify")
@click.option("--vocabularies", default="32000,152000", show_default=True, help="Tokens of p; with commas.")
@click.option("--rounds", type=click.IntRange(1), default=60, show_default=True, help="Drafts of every shape.")
def verify(vocabularies: str, rounds: int) -> None:
    """Measure what judging a draft of 16 nodes costs, by rule and vocabulary."""
    from forerun.bench import verify as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order([int(size) for size in vocabularies.split(",")], rounds))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("sampling")
@click.option("--vocabularies", default="32000,152000", show_default=True, help="Tokens of a row; with commas.")
@click.option("--rows", default="1,8", show_default=True, help="Rows of logits; with commas.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Of every sampling.")
def sampling(vocabularies: str, rows: str, rounds: int) -> None:
    """Measure what making chances of logits costs, by sampling and vocabulary, beside transformers."""
    from forerun.bench import sampling as benchmark
    from forerun.bench.report import as_json

    sizes, counts = ([int(number) for number in told.split(",")] for told in (vocabularies, rows))
    found = benchmark.run(benchmark.Order(sizes, counts, rounds))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("idle")
@click.option(
    "--drafter", "drafters", multiple=True, metavar="DRAFTER", help="Spelled; repeat. Default: all free ones."
)
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Requests per drafter.")
@click.option("--nodes", type=click.IntRange(1, 128), default=8, show_default=True, help="Of a draft, at most.")
def idle(drafters: tuple[str, ...], rounds: int, nodes: int) -> None:
    """Measure what drafters cost per step where they have nothing to offer, without a model."""
    from forerun.bench import idle as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order(drafters=drafters, rounds=rounds, nodes=nodes))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("stores")
@click.option("--tokens", type=click.IntRange(512), default=1_000_000, show_default=True, help="Held by every drafter.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Further documents.")
def stores(tokens: int, rounds: int) -> None:
    """Measure what reading a token into a large store of texts costs, and drafting one from it."""
    from forerun.bench import stores as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order(tokens, rounds))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("peers")
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for checkpoints and conversions, which are made once; gigabytes.",
)
@click.option("--shapes", default="125M,360M", show_default=True, help="1M, 125M, 360M, 1.1B; with commas.")
@click.option("--dtype", "dtypes", default="int8,int4,bf16", show_default=True, help="Bits of a weight; with commas.")
@click.option("--only", default="", help="Engines to run beside forerun, with commas [all that are installed].")
@python_option("this one")
@click.option(
    "--reference", is_flag=True, help="The bundled model, enlarged, and its drafter, instead of random weights."
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns of every engine.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Threads of every engine [one per core].")
def peers(work: Path, pythons: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401
    """Measure llama.cpp, OpenVINO GenAI, onnxruntime-genai and transformers beside forerun, on the CPU.

    Same weights, one process per engine, one of them working at a time. Engines: llama.cpp, openvino,
    onnxruntime-genai, transformers; one that is not installed is left out, with the command that installs it.
    """
    from forerun.bench import contest
    from forerun.bench.report import as_json

    for name in ("shapes", "dtypes", "only"):
        values[name] = [word.strip() for word in values[name].split(",") if word.strip()]
    found = contest.run(contest.Order(work, pythons=_pairs(pythons), **values))
    contest.show(found)
    click.echo(as_json(found))


@command.command("schema")
@click.option("--tokenizer", metavar="MODEL", default="reference", show_default=True, help="Over whose tokens.")
@click.option(
    "--vocabulary", "vocabularies", multiple=True, metavar="PATH", help="Time masks over it; may be repeated."
)
@click.option("--prompts", type=click.IntRange(1), default=50, show_default=True, help="Schemas per set, or its file.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Rounds per greedy text.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Sampled texts per schema.")
@click.option("--categories", default="own", show_default=True, help="Which sets, with commas.")
@click.option("--inflate", metavar="SIZE", help="Measure at the cost of a bigger model: 350M, 1B.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@config_options
@sampling_options
def schema(**values: Any) -> None:  # noqa: ANN401
    """Measure which schemas and grammars are covered, what masks cost, and what drafts save under them.

    Sets: own; and where their files are present jsonschemabench, json_schema_test_suite, grammars. A vocabulary is a
    folder with a tokenizer, or a file of ranks that ends with .tiktoken.gz.
    """
    from forerun.bench import schema as benchmark
    from forerun.bench.report import as_json

    categories = words(values.pop("categories"))
    names = ("tokenizer", "vocabularies", "prompts", "repeats", "seeds", "inflate", "data")
    own = {name: values.pop(name) for name in names}
    drafters = values.pop("drafter") or ("grammar", Config.drafter)
    found = benchmark.run(benchmark.Order(categories, drafters=drafters, **own), *split(values))
    benchmark.show(found)
    click.echo(as_json(found))


@command.command("serve")
@click.option("--url", help="A server that runs; without it one is started, with the flags of the engine.")
@click.option("--concurrency", default="1,4,16", show_default=True, help="Clients at the same time; with commas.")
@click.option("--rate", "rates", multiple=True, type=click.FloatRange(0, min_open=True), help="Requests per second.")
@click.option("--requests", type=click.IntRange(1), default=64, show_default=True, help="At each load.")
@click.option("--ttft-ms", type=float, default=500.0, show_default=True, help="Objective of the first token.")
@click.option("--tpot-ms", type=float, default=50.0, show_default=True, help="Objective of every further one.")
@click.option("--against", multiple=True, metavar="FLAGS", help="Another server with these flags too; or library.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Rounds of every load.")
@click.option("--parts", type=click.IntRange(1), default=1, show_default=True, help="Of a load, between turns.")
@click.option("--categories", default="story", show_default=True, help="Which prompts, in turn; with commas.")
@click.option("--trace", default="", help="Lengths and moments of a trace, at --rate: mixed, rare, azure-conv, ...")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the public sets.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Goodput by load, as a PNG.")
@config_options
@sampling_options
def serve(url: str | None, concurrency: str, rates: tuple[float, ...], **values: Any) -> None:  # noqa: ANN401
    """Measure servers under load: latencies, throughput, and how many answers met their objectives.

    So many clients that each ask again once they are answered; with --rate (may be repeated) random arrivals instead.
    With --ignore-eos answers are half to one and a half times --max-tokens long, so that clients do not move in step.
    """
    from forerun.bench import serve as benchmark
    from forerun.bench.paper import keep
    from forerun.bench.report import as_json

    names = ("requests", "ttft_ms", "tpot_ms", "against", "repeats", "parts", "trace", "data")
    own, out = {name: values.pop(name) for name in names}, values.pop("out")
    own["categories"] = words(values.pop("categories"))
    config, sampling = split(values)
    found = benchmark.run(benchmark.Order(url, budgets("concurrency", concurrency), rates, **own), config, sampling)
    benchmark.show(found)
    if out is not None:
        keep(benchmark.plot(found), out)
    click.echo(as_json(found))


@command.command("inflate")
@click.argument("size")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--model", default=Config.model, show_default=True, help="Whose function it has; a Llama.")
def inflate(size: str, out: Path, model: str) -> None:
    """Write a model of SIZE, as in 350M, into the folder OUT that costs its size and writes what MODEL writes.

    For what --inflate cannot reach: servers, and other programs.
    """
    from forerun.bench import enlarged
    from forerun.bench.report import as_json

    click.echo(as_json(enlarged.run(enlarged.Order(size, out), model)))


@command.command("soak")
@click.argument("count", type=click.IntRange(1), default=10_000)
def soak(count: int) -> None:
    """Ask a server COUNT times, 10,000 unless told, as clients of every kind at once; look at what is left behind."""
    from forerun.bench import soak as benchmark
    from forerun.bench.report import as_json

    found = benchmark.run(benchmark.Order(count))
    benchmark.show(found)
    click.echo(as_json(found))
    if not found["sound"]:
        click.echo("forerun: the server answered wrongly, or kept something; see above.", err=True)
        sys.exit(1)


def words(text: str) -> list[str]:
    """'story, chat' -> ["story", "chat"]."""
    return [word.strip() for word in text.split(",") if word.strip()]


def budgets(flag: str, text: str) -> list[int]:
    """'8,16' -> [8, 16]."""
    counts = [word.strip() for word in text.split(",")]
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise click.UsageError(f"--{flag} is {text!r}; give whole numbers of 1 or more, with commas.")
    return [int(count) for count in counts]


def shares(flag: str, text: str) -> list[float]:
    """'0.6,0.9' -> [0.6, 0.9]."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0 < share < 100 for share in found):  # noqa: PLR2004 - more is a slip
        raise click.UsageError(f"--{flag} is {text!r}; give numbers above 0, with commas.")
    return found


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    """ENGINE=PATH -> {engine: path}."""
    pairs = [text.partition("=") for text in given]
    for name, _, path in pairs:
        if not name or not path:
            raise click.UsageError(f"--python is {name!r}; write it as ENGINE=PATH.")
    return {name: path for name, _, path in pairs}


several_drafters(command)
several_drafters(compare_transformers)
several_drafters(drafts)
several_drafters(choices)
several_drafters(schema)
