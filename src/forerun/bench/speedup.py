"""`forerun bench`: from what was asked to a report.

Does not: print, or write files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from forerun.bench import machine, workloads
from forerun.bench.measure import CONVENTION, Race, Seen, entrants, figures, groups
from forerun.bench.report import Report
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.inflate import Growing, inflate
from forerun.types import Sampling

MAX_TOKENS = 128
_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Order:
    """What is to be measured."""

    categories: Sequence[str] = workloads.OWN
    prompts: int = 5  # per category
    repeats: int = 3
    drafters: Sequence[str] = ("auto",)
    data: Path | None = None
    inflate: str | None = None


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> Report:
    """The whole benchmark; `config` and `sampling` are the keywords that were given."""
    keywords = {"max_requests": 1, **config}
    drawn = Sampling(**{"temperature": 0.0, "max_tokens": MAX_TOKENS, "seed": 0, **sampling})
    prompts = workloads.load(order.categories, order.prompts, order.data)
    plain, notes = open_plain(keywords, order.inflate)
    load = workloads.encode(prompts, plain.tokenizer, plain.engine.limits.context_length - (drawn.max_tokens or 1))
    runners = entrants(plain, order.drafters, keywords, drawn)
    race = Race(runners, groups(load.items, plain.config.max_requests), drawn, order.repeats)
    total = len(race.groups) * len(runners) * order.repeats
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        trials = race.trials(lambda: bar.advance(task))
    seen = race.differences(trials)
    return {
        "title": "Speed-up over plain decoding",
        "benchmark": "speed-up",
        "machine": machine.facts(plain.model.info),
        **machine.circumstances(),
        "model": model_facts(plain, order.inflate),
        "settings": {"prompts": order.prompts, "repeats": order.repeats, "sampling": asdict(drawn)},
        "convention": CONVENTION,
        "drafters": figures(race, trials, seen),
        "differences": [_flat(s) for s in seen],
        "divergences": sum(s.difference.kind == "divergence" for s in seen),
        "notes": [*notes, *load.notes],
    }


def _flat(seen: Seen) -> dict[str, Any]:
    found = asdict(seen)
    return {**found, **found.pop("difference")}


def open_plain(keywords: Mapping[str, Any], inflated: str | None = None) -> tuple[LLM, list[str]]:
    """The model, decoded one token per step; enlarged where that was asked for, with the sentence that says so."""
    plain = {**keywords, "drafter": "none", "decoder": "autoregressive"}
    llm = LLM(**plain)
    if inflated is None:
        return llm, []
    if not isinstance(llm.model, Growing):
        raise ConfigError(
            f"{llm.model.info.name} cannot be enlarged, only decoders in a folder can; leave --inflate out."
        )
    plain.pop("model", None)
    return LLM(inflate(llm.model, parameters(inflated)), llm.tokenizer, **plain), [inflation_note(inflated)]


def inflation_note(size: str) -> str:
    """What an enlarged model is, and what its numbers are not."""
    return (
        f"INFLATED to {size} parameters: layers whose output projections are zero were added, so a pass costs what a "
        f"{size} model's pass costs while the function is the small model's. Acceptance is the small model's too; "
        "the speed-up says what this acceptance is worth at that cost, not what a trained model of that size reaches."
    )


def parameters(size: str) -> int:
    """'350M' -> 350_000_000."""
    number, unit = size[:-1], size[-1:].upper()
    try:
        found = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        found = 0
    if found < 1:
        raise ConfigError(f"--inflate is {size!r}; give a number of parameters such as 350M or 1B.")
    return found


def model_facts(llm: LLM, inflated: str | None) -> dict[str, Any]:
    """The model as the report names it."""
    info = llm.model.info
    return {
        "name": info.name,
        "weight_bytes": info.weight_bytes,
        "layers": info.num_layers,
        "hidden_size": info.hidden_size,
        "vocabulary": info.vocab_size,
        "companion": Path(info.companion).name if info.companion else None,
        "inflated": inflated,
    }
