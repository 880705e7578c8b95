"""`forerun bench schema`: what JSON schemas and grammars are covered, and what they cost with and without drafts.

Coverage is `covered.py`'s, the masks of larger vocabularies are `masks.py`'s, and what they add to a step `held.py`'s.
Then the model writes under the project's own schemas, plain and with drafts in turn, greedy; and sampled, under some
schemas of every set, by seeds.
Does not: check formats that validators ignore, or ask whether what the model writes is sensible.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from forerun.bench import covered, held, machine, masks
from forerun.bench.covered import OWN, Row, validator
from forerun.bench.figures import Spread
from forerun.bench.paper import paper
from forerun.bench.speedup import model_facts, open_plain
from forerun.errors import RequestError
from forerun.llm import LLM, Result
from forerun.types import Constraint, Sampling

SPACES = {"free": "true", "none": "false"}  # between values
PROMPT = "Here is the JSON of a little girl and her dog: "
SAMPLED, LONG = 4, 200  # schemas of every part of a set; tokens of a sampled text
STEPPED = 1  # schemas of every part under which steps are timed


@dataclass(frozen=True)
class Order:
    """What to measure."""

    categories: Sequence[str] = (OWN,)
    prompts: int = 50  # schemas of every part of a set
    tokenizer: str = "reference"
    vocabularies: Sequence[str] = ()  # over which masks are timed: folders, or files of ranks
    drafters: Sequence[str] = ()
    data: Path | None = None
    repeats: int = 3
    seeds: int = 1
    inflate: str | None = None


def write(order: Order, plain: LLM, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Let the model write under the project's own schemas, plain and with each drafter in turn."""
    llms: dict[str, LLM] = {"plain": plain} | {drafter: _beside(plain, config, drafter) for drafter in order.drafters}
    known = [row for row in covered.load(OWN, order.prompts, None) if _compiles(plain, row.constraint)]
    cases: list[dict[str, Any]] = []
    for name, how in SPACES.items():
        wishes = [Constraint(f"json_schema:whitespace={how}", row.constraint.text) for row in known]
        asked = [Sampling(**{"temperature": 0.0, "max_tokens": 96, **sampling, "constraint": wish}) for wish in wishes]
        texts = _in_turn(llms, asked, order.repeats)
        cases += [{"spaces": name, "drafter": by, **_told(texts[by], known, texts["plain"])} for by in llms]
    return cases


def _beside(plain: LLM, config: Mapping[str, Any], drafter: str) -> LLM:
    shared = {name: value for name, value in config.items() if name not in ("model", "drafter")}
    return LLM(plain.model, plain.tokenizer, **shared, drafter=drafter)


def _compiles(llm: LLM, wish: Constraint) -> bool:
    try:
        llm.engine.members.guides(wish, frozenset())
    except RequestError:
        return False
    return True


def _in_turn(llms: Mapping[str, LLM], asked: Sequence[Sampling], repeats: int) -> dict[str, list[list[Result]]]:
    """Every text by everybody, one after the other, and again; once everything that is made at first use is there."""
    for llm in llms.values():
        llm.generate(PROMPT, replace(asked[0], max_tokens=8))
    found: dict[str, list[list[Result]]] = {name: [[] for _ in asked] for name in llms}
    for i, sampling in [*enumerate(asked)] * repeats:
        for name, llm in llms.items():
            found[name][i] += llm.generate(PROMPT, sampling)
    return found


def _told(texts: Sequence[Sequence[Result]], rows: Sequence[Row], wanted: Sequence[Sequence[Result]]) -> dict[str, Any]:
    """What became of one drafter's texts."""
    results = [some[0] for some in texts]
    tokens, steps = sum(len(r.tokens) for r in results), sum(r.stats.steps for r in results)
    pairs = [
        (one, plain) for some, other in zip(texts, wanted, strict=True) for one, plain in zip(some, other, strict=True)
    ]
    return {
        "texts": len(results),
        **_judged(results, rows),
        "as_plain": sum(one.tokens == plain.tokens for one, plain in pairs) // len(texts[0]),
        "tokens": tokens,
        "tokens_per_step": tokens / steps,
        "ms_per_token": asdict(Spread.of([1e3 * one.seconds / len(one.tokens) for one, _ in pairs])),
        "ms_per_step": asdict(Spread.of([1e3 * one.seconds / one.stats.steps for one, _ in pairs])),
        "speedup": asdict(Spread.of([plain.seconds / one.seconds for one, plain in pairs])),
    }


def _judged(results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Any]:
    """Which texts came to their end, and which of these another library finds valid."""
    ended = [(r, row) for r, row in zip(results, rows, strict=True) if r.finish_reason == "stop"]
    wrong = [(r, row) for r, row in ended if not validator(row.schema).is_valid(json.loads(r.text))]
    invalid = [{"text": r.text[:300], "schema": row.constraint.text[:300]} for r, row in wrong]
    return {"complete": len(ended), "valid": len(ended) - len(wrong), "invalid": invalid}


def sample(order: Order, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampled texts under schemas of every set, by plain decoding and with drafts in turn."""
    plain, _ = open_plain(config)
    drafting = _beside(plain, config, order.drafters[0])
    rows: list[Row] = []
    for category in order.categories:
        for _, part in covered.parts(category, order.prompts, order.data):
            rows += islice(_writable(part, plain), SAMPLED)
    asked = [(row, seed) for seed in range(order.seeds) for row in rows]
    results: list[Result] = []
    for number, (row, seed) in enumerate(asked):
        sampling = Sampling(temperature=1.0, max_tokens=LONG, seed=seed, constraint=row.constraint)
        results += (plain, drafting)[number % 2].generate(PROMPT, sampling)
    cut = sum(result.finish_reason == "length" for result in results)
    failed = sum(result.finish_reason == "error" for result in results)
    return {"texts": len(results), "cut": cut, "failed": failed, **_judged(results, [row for row, _ in asked])}


def _writable(rows: Iterator[Row], llm: LLM) -> Iterator[Row]:
    return (row for row in rows if row.schema is not None and _compiles(llm, row.constraint))


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The texts, then every set and every vocabulary."""
    setup = masks.vocabulary(order.tokenizer)
    plain, notes = open_plain(config, order.inflate)
    texts, sampled = write(order, plain, config, sampling), sample(order, config)
    facts = machine.facts(plain.model.info)
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "title": f"Schemas and grammars over {order.tokenizer} ({setup.vocab} tokens)",
        "benchmark": "schema",
        **machine.circumstances(),
        "machine": facts,
        "model": model_facts(plain, order.inflate),
        "sets": {
            part: covered.measure(rows, setup).figures()
            for name in order.categories
            for part, rows in covered.parts(name, order.prompts, order.data)
        },
        "masks": {name: _timed(name, order) for name in order.vocabularies},
        "steps": {name: _steps(name, plain, order, config) for name in order.vocabularies if order.inflate},
        "texts": texts,
        "sampled": sampled,
    }
    return {**found, "notes": [*notes, *_notes(found)]}


def _steps(name: str, plain: LLM, order: Order, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a constraint adds to a step over one vocabulary."""
    setup = masks.vocabulary(name)
    return {"tokens": setup.vocab, "batches": held.measure(plain.model, setup, _instances(order, STEPPED), config)}


def _instances(order: Order, count: int) -> Iterator[Row]:
    """The first schemas of every part of a set that come with a valid instance."""
    parts = (part for category in order.categories for _, part in covered.parts(category, order.prompts, order.data))
    return (row for part in parts for row in islice((row for row in part if any(v for _, v in row.tests)), count))


def _timed(name: str, order: Order) -> dict[str, Any]:
    """What masks cost over one vocabulary."""
    setup = masks.vocabulary(name)
    return {"tokens": setup.vocab, **masks.measure(setup, _instances(order, SAMPLED)).figures()}


def _notes(found: Mapping[str, Any]) -> Iterator[str]:
    """What the tables do not say; times are median / 99 % / worst."""
    for name, case in found["masks"].items():
        one, draft, left = (case[what] for what in ("one", "draft", "left"))
        over = f"{draft['over_a_tenth']:.1%} and {left['over_a_tenth']:.1%} of the drafts"
        yield (
            f"Masks over {Path(name).name} ({case['tokens']} tokens): {_us(one)} for one, {_us(draft)} for the "
            f"{masks.NODES + 1} of a draft of {masks.NODES}; {_us(left)} of them are left for the step's own thread "
            f"where another finds them during the pass. They take more than a tenth of "
            f"{masks.PASS_MS:.0f} ms at {over}."
        )
    for name, case in found["steps"].items():
        for batch, way, times in ((b, w, t) for b, ways in case["batches"].items() for w, t in ways.items()):
            plain = f"{times['plain_ms']:.1f} ms"
            yield (
                f"A step over {Path(name).name} ({case['tokens']} tokens), batch of {batch}, {way}: {plain} "
                f"without a constraint, {times['held_ms']:.1f} with it: {times['added']:+.1%} (median), "
                f"{times['added_all']:+.1%} in all."
            )
    for case in found["texts"]:
        shares = f"{case['as_plain']} of {case['texts']} texts as plain, {case['valid']} of {case['complete']} complete"
        yield (
            f"Own schemas, white space {case['spaces']}, {case['drafter']}: {case['tokens_per_step']:.2f} tokens per "
            f"step, {Spread(**case['speedup']).shown()} times as fast as plain; {shares} ones valid."
        )
    case = found["sampled"]
    yield (
        f"Sampled: {case['texts']} texts under schemas of every set, {case['valid']} of {case['complete']} complete "
        f"ones valid; {case['cut']} were cut at {LONG} tokens and {case['failed']} ended with an error."
    )


def _us(case: Mapping[str, Any]) -> str:
    return " / ".join(f"{us:.0f}" for us in case["us"]) + " µs"


def show(found: Mapping[str, Any]) -> None:
    """Two tables and sentences for people."""
    console = paper()
    columns = ("set", "compiled", "llguidance", "all right", "over", "under", "because", "compile ms", "mask µs")
    caption = "over: valid instances refused; under: invalid ones let through; times are median / 99 % / worst"
    table = Table(*columns, title=found["title"], caption=caption, title_justify="left")
    for name, case in found["sets"].items():
        judged = f"{case['over_constrained']}/{case['valid']}", f"{case['under_constrained']}/{case['invalid']}"
        causes = ", ".join(f"{count} {cause}" for cause, count in case["causes"].items())
        times = ["/".join(f"{value:.{digits}f}" for value in case[key]) for key, digits in _TIMES]
        shares = f"{case['compiled']}/{case['schemas']}", str(case["llguidance"]), str(case["right"])
        table.add_row(name, *shares, *judged, causes, *times)
    console.print(table)
    table = Table("spaces", "drafter", "complete", "valid", "as plain", "tokens a step", "ms a step", "over plain")
    for case in found["texts"]:
        counts = [f"{case[key]}/{case['texts']}" for key in ("complete", "valid", "as_plain")]
        ratios = [Spread(**case[key]).shown() for key in ("ms_per_step", "speedup")]
        table.add_row(case["spaces"], case["drafter"], *counts, f"{case['tokens_per_step']:.2f}", *ratios)
    console.print(table)
    for note in found["notes"]:
        console.print(note)


_TIMES = (("compile_ms", 1), ("mask_us", 0))
