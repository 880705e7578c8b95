"""`forerun bench fidelity`: how far a method that is not exact goes from the model's own distribution, and for what.

On toy models the distance is exact: every outcome is visited, with a drafter of the wrong opinion. On a real pair: at
temperature 0 the share of tokens that the target itself would have chosen after the same beginning; at temperature 1
the log-likelihood of the texts under the target, against plain sampling of the same prompts, and the surplus of this
log-likelihood over what the target expects at the same places (minus its entropy), which is 0 in the mean for an exact
method, whatever the prompts; tokens per step against the exact rule with the same drafter. The methods are those of the
tables whose facts say that they are not exact.
Does not: judge texts; a likelier text is not a better one, and plain sampling is what the model means.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.equality import first_difference
from forerun.bench.paper import paper
from forerun.bench.speedup import model_facts, open_plain
from forerun.build import FAMILIES
from forerun.config import Choice, Config, choose
from forerun.errors import ConfigError, RequestError, unknown
from forerun.llm import LLM, Result
from forerun.models.contract import Model
from forerun.models.toy import ToyModel
from forerun.quantize import one_pass
from forerun.testing.checks import SEEDS
from forerun.testing.exhaustive import Table as Law
from forerun.testing.exhaustive import distance
from forerun.testing.laws import LENGTH, PROMPT, SAMPLINGS, output_law, spelled
from forerun.testing.reference import Reference
from forerun.testing.toy import Toy
from forerun.types import Sampling

JUDGES = ("verifier", "decoder")  # families whose members decide what comes out
TOY_DRAFTER = "draft-model:model=toy:100,depth=2"
SURE = 1.96  # standard errors to either side of a mean: 95 %
PLAIN, EXACT = "plain decoding", "the exact rule"
COLUMNS = (
    "Distance: total variation to the model's law, three tokens of toy models, by enumeration. Greedy: the share of "
    "tokens that the model itself finds likeliest, and of its greedy text before the first difference. Sampled: nats "
    "per token under the model, over plain sampling, and over what the model expects of its own tokens at the same "
    "places, which is 0 in the mean for an exact method; with 95 % intervals over prompts."
)


@dataclass(frozen=True)
class Order:
    """What to measure."""

    settings: Sequence[str] = ()  # further spellings of methods, beside each one's defaults
    only: bool = False  # nothing but these
    categories: Sequence[str] = workloads.OWN
    prompts: int = 5  # per category
    samples: int = 4  # per prompt, at temperature 1
    max_tokens: int = 64
    data: Path | None = None


@dataclass(frozen=True)
class Score:
    """One text under the target."""

    category: str
    prompt: int
    chosen: float  # share of tokens that are the target's most likely one after the same beginning
    same: float  # share of plain decoding's greedy text before the first difference
    loglik: float  # nats per token
    surplus: float  # nats of the whole text over what the target expects of its own tokens there
    tokens: int


@dataclass(frozen=True)
class Entrant:
    """One way to decode."""

    name: str
    toy: Toy  # on toy models
    method: Mapping[str, str]  # keywords on the real ones
    choice: Choice | None = None  # the method that is not exact


def run(order: Order, config: Mapping[str, Any]) -> dict[str, Any]:
    """Every method on toys and on the real pair."""
    keywords = {name: value for name, value in config.items() if name not in JUDGES}
    plain, notes = open_plain(keywords)
    room = plain.engine.limits.context_length - order.max_tokens
    load = workloads.encode(workloads.load(order.categories, order.prompts, order.data), plain.tokenizer, room)
    cases: list[dict[str, Any]] = []
    greedy: list[Result] = []
    drawn: list[Score] = []
    for entrant in track(
        list(entrants(order.settings, only=order.only)), "decoding", console=Console(stderr=True), transient=True
    ):
        try:
            best, samples = _write(_with(plain, keywords, entrant.method), load.items, order)
        except (ConfigError, RequestError) as problem:
            notes.append(f"{entrant.name} was left out: {problem}")
            continue
        greedy, scores = greedy or best, _scores(plain.model, load.items, samples, None)
        drawn = drawn or scores
        case = _case(entrant, _scores(plain.model, load.items, best, greedy), scores, drawn)
        cases.append(case | {"steps": {"greedy": _tau(best), "drawn": _tau(samples)}})
    return {
        "title": "What methods that are not exact change",
        "benchmark": "fidelity",
        **machine.circumstances(),
        "machine": machine.facts(plain.model.info),
        "model": model_facts(plain, None),
        "drafter": keywords.get("drafter", Config.drafter),
        "settings": {"prompts": len(load.items), "samples": order.samples, "max_tokens": order.max_tokens},
        "cases": list(_over_exact(cases)),
        "notes": [COLUMNS, *notes, *load.notes],
    }


def entrants(settings: Sequence[str], *, only: bool = False) -> Iterator[Entrant]:
    """Plain decoding, the exact rule, then every method that is not exact; `only` those that are spelled."""
    toy = Toy(drafter=TOY_DRAFTER)
    yield Entrant(PLAIN, toy.plain(), {"drafter": "none", "decoder": "autoregressive"})
    yield Entrant(EXACT, toy, {})
    for choice in lossy(settings, only=only):
        yield Entrant(choice.spelling, toy_of(choice), {choice.family: choice.spelling}, choice)


def lossy(settings: Sequence[str], *, only: bool = False) -> list[Choice]:
    """Every method of the tables that is not exact, with its defaults, then as further spelled; by table and name."""
    tables = [FAMILIES[family] for family in JUDGES]
    names = [(table, name) for table in tables for name in table if not table[name].facts.exact]
    known = {name: table for table, name in names}
    for setting in settings:
        if setting.partition(":")[0] not in known:
            raise ConfigError(unknown("forerun bench fidelity", "method", setting.partition(":")[0], known))
    own = {name: [s for s in settings if s.partition(":")[0] == name] for name in known}
    spellings = [s for name in known for s in (*([] if only else [name]), *own[name])]
    return [choose(known[spelling.partition(":")[0]], spelling) for spelling in spellings]


def _with(plain: LLM, keywords: Mapping[str, Any], method: Mapping[str, str]) -> LLM:
    shared = {name: value for name, value in keywords.items() if name != "model"}
    return LLM(plain.model, plain.tokenizer, **{**shared, **method})


def toy_of(choice: Choice) -> Toy:
    """A toy engine with this method: its numbers and what was spelled, on toy models instead of files."""
    values = {f: getattr(choice.options, f.name) for f in fields(choice.options)}
    given = {f.name: value for f, value in values.items() if value != f.default or isinstance(value, int | float)}
    options = replace(choice.member.toy(), **given)
    method: dict[str, Any] = {choice.family: replace(choice, options=options)}
    return Toy(drafter=TOY_DRAFTER, **method)


def toy_distance(toy: Toy) -> float:
    """Total variation to the target's law of three tokens, the mean over toy targets; exact."""
    toys = [replace(toy, model=ToyModel(3, seed)) for seed in SEEDS]
    sampling = SAMPLINGS["plain"]
    laws = [cast("Law", Reference(toy.model).law(PROMPT, sampling, LENGTH)) for toy in toys]
    return fmean(distance(law, output_law(toy, sampling)) for law, toy in zip(laws, toys, strict=True))


def _write(llm: LLM, items: Sequence[workloads.Item], order: Order) -> tuple[list[Result], list[Result]]:
    """The greedy text of every prompt, and its samples at temperature 1; RequestError if one ends with an error."""
    greedy = Sampling(temperature=0, max_tokens=order.max_tokens)
    drawn = [replace(greedy, temperature=1.0, seed=seed) for seed in range(len(items))]  # prompts are independent
    best = llm.generate([item.tokens for item in items], greedy)
    samples = [r for item, s in zip(items, drawn, strict=True) for r in llm.generate([item.tokens], s, order.samples)]
    for result in (*best, *samples):
        if result.error:
            raise RequestError(result.error)
    return best, samples


def _scores(
    model: Model, items: Sequence[workloads.Item], results: Sequence[Result], plain: Sequence[Result] | None
) -> list[Score]:
    """Each text under the target; `plain` are the greedy texts to compare with, where that is asked."""
    many = len(results) // len(items)
    found = []
    for number, result in enumerate(results):
        tokens, output = (*result.prompt_tokens, *result.tokens), torch.tensor(result.tokens)
        with torch.inference_mode():
            logits = one_pass(model, tokens[:-1], len(output)).double()
        logs = logits.log_softmax(-1)
        said, entropy = logs.gather(1, output[:, None])[:, 0], -(logs.exp() * logs).sum(-1)
        same = _same(plain[number].tokens, result.tokens) if plain is not None else 0.0
        chosen = float((logits.argmax(-1) == output).double().mean())
        item = items[number // many]
        sums = float(said.mean()), float((said + entropy).sum()), len(output)
        found.append(Score(item.category, number // many, chosen, same, *sums))
    return found


def _same(expected: Sequence[int], found: Sequence[int]) -> float:
    at = first_difference(expected, found)
    return 1.0 if at is None else at / len(expected)


def _case(entrant: Entrant, best: Sequence[Score], drawn: Sequence[Score], plain: Sequence[Score]) -> dict[str, Any]:
    """The figures of one way to decode: of all prompts, and by category."""
    choice = entrant.choice
    found = {
        "name": entrant.name,
        "family": choice and choice.family,
        "law": choice and choice.member.facts.law,
        "toy": spelled(entrant.toy),
        "distance": float(f"{toy_distance(entrant.toy):.4g}"),
    }
    found |= _figures(best, drawn, plain)
    names = dict.fromkeys(score.category for score in best)
    parts = {name: [[s for s in scores if s.category == name] for scores in (best, drawn, plain)] for name in names}
    return found | {"categories": {name: _figures(*part) for name, part in parts.items()}}


def _figures(best: Sequence[Score], drawn: Sequence[Score], plain: Sequence[Score]) -> dict[str, Any]:
    """Means over texts; what has an interval is the mean over prompts, each with all its samples."""
    prompts = sorted({score.prompt for score in drawn})
    means = [[fmean(s.loglik for s in scores if s.prompt == p) for p in prompts] for scores in (drawn, plain)]
    length = sum(score.tokens for score in drawn) / len(prompts)
    surplus = [sum(s.surplus for s in drawn if s.prompt == p) / length for p in prompts]
    return {
        "chosen": round(fmean(score.chosen for score in best), 4),
        "same_text": round(fmean(score.same for score in best), 4),
        "loglik": round(fmean(means[0]), 4),
        "difference": _interval([mine - theirs for mine, theirs in zip(*means, strict=True)]),
        "surplus": _interval(surplus),
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    """The mean, and half of its 95 % interval."""
    error = round(SURE * stdev(values) / len(values) ** 0.5, 4) if len(values) > 1 else None
    return {"mean": round(fmean(values), 4), "error": error}


def _tau(results: Sequence[Result]) -> float:
    """Tokens per step of all texts together."""
    return round(sum(r.stats.tokens for r in results) / sum(r.stats.steps for r in results), 4)


def _over_exact(cases: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Tokens per step beside those of the exact rule."""
    exact = next(case for case in cases if case["name"] == EXACT)["steps"]
    for case in cases:
        yield case | {"over_exact": {kind: round(tau / exact[kind], 4) for kind, tau in case["steps"].items()}}


HEADER = (
    "method",
    "toys: distance",
    "greedy: chosen",
    "same text",
    "sampled: log p",
    "over plain",
    "surplus",
    "tokens/step",
    "over exact",
)


def rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The cells below HEADER."""
    for case in report["cases"]:
        yield (
            case["name"],
            f"{case['distance']:.3f}",
            f"{case['chosen']:.1%}",
            f"{case['same_text']:.0%}",
            f"{case['loglik']:.3f}",
            *(shown(case[name]) for name in ("difference", "surplus")),
            " / ".join(f"{tau:.2f}" for tau in case["steps"].values()),
            " / ".join(f"{ratio:.2f}" for ratio in case["over_exact"].values()),
        )


def shown(interval: Mapping[str, float | None]) -> str:
    """A mean with half of its interval."""
    error = interval["error"]
    return f"{interval['mean']:+.3f} ± " + ("–" if error is None else f"{error:.3f}")


def show(report: Mapping[str, Any]) -> None:
    """The table, then the notes."""
    console = paper()
    title = f"{report['title']}, drafter {report['drafter']}"
    table = Table(title=title, title_justify="left")
    table.add_column(HEADER[0], overflow="fold", min_width=24)
    for name in HEADER[1:]:
        table.add_column(name, justify="right")
    for cells in rows(report):
        table.add_row(*(cell.replace("[", "\\[") for cell in cells))
    console.print(table)
    for note in report["notes"]:
        console.print(note, markup=False)
