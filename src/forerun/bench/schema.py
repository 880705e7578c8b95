"""`forerun bench schema`: what JSON schemas and grammars are covered, and what they cost with and without drafts.

Every schema is compiled, and its instances are read token by token as if they were written: a valid one that is refused
is over-constrained, an invalid one that is let through under-constrained; of those that compile, as what is not
supported is refused at once (2501.10868). Then the model writes under the first schemas, plain and with drafts.
Times are those of a whole committed token: the guide goes on, and finds the next mask.
Does not: check formats that validators ignore, or ask whether what the model writes is sensible.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from forerun.bench import machine
from forerun.bench.figures import Spread, quantile
from forerun.bench.workloads import folder_of
from forerun.build import guides_for, setup_for
from forerun.config import Config
from forerun.constraints.contract import Guides
from forerun.errors import ConfigError, RequestError, unknown
from forerun.llm import LLM, Result
from forerun.models.spelling import Speller
from forerun.models.tokenizer import FolderTokenizer, Tokenizer
from forerun.models.toy import toy_by_name
from forerun.types import Constraint, Sampling, Setup

OWN = "own"
SETS = {  # a file that each has, and all that it is made of
    "jsonschemabench": ("BFCL.jsonl.gz", "*.jsonl.gz"),
    "json_schema_test_suite": ("tests/draft2020-12/type.json", "tests/draft2020-12/*.json"),
    "grammars": ("llama.cpp/json.gbnf", "**/*.*"),
}
DIALECTS = {".gbnf": "gbnf", ".ebnf": "gbnf", ".lark": "lark"}
SPACES = {"free": "true", "none": "false"}  # between values
PROMPT = "Here is the JSON of a little girl and her dog: "
_MANY = 12  # rows of the table of refusals


@dataclass(frozen=True)
class Order:
    """What to measure."""

    categories: Sequence[str] = (OWN,)
    prompts: int = 50  # schemas of every set, or of every part of one
    tokenizer: str = "reference"
    drafters: Sequence[str] = ()
    data: Path | None = None


@dataclass(frozen=True)
class Row:
    """A constraint, and texts that should be let through or not."""

    constraint: Constraint
    tests: Sequence[tuple[Any, bool]] = ()


@dataclass
class Found:
    """What became of one set."""

    rows: int = 0
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    read: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # valid, let through
    exact: int = 0  # schemas that compile, and judge every instance rightly

    def figures(self) -> dict[str, Any]:
        """As the report has it."""
        valid, invalid = (self.read[kind, True] + self.read[kind, False] for kind in (True, False))
        return {
            "schemas": self.rows,
            "compiled": len(self.compile_ms),
            "right": self.exact,
            "valid": valid,
            "over_constrained": self.read[True, False],
            "invalid": invalid,
            "under_constrained": self.read[False, True],
            "compile_ms": [quantile(self.compile_ms, share) for share in (0.5, 0.99, 1.0)],
            "mask_us": [quantile(self.mask_us, share) for share in (0.5, 0.99, 1.0)],
            "tokens": len(self.mask_us),
            "refusals": dict(self.refusals.most_common(_MANY)),
        }


def load(name: str, count: int, data: Path | None) -> Iterator[Row]:
    """The first `count` constraints of a set, or of each of its files where they are many in one."""
    if name == OWN:
        lines = (files("forerun.bench") / "schemas.jsonl").read_text(encoding="utf-8").split("\n")
        yield from map(_schema, map(json.loads, filter(None, lines[:count])))
        return
    if name not in SETS:
        raise ConfigError(unknown("forerun bench schema", "set", name, (OWN, *SETS)))
    probe, pattern = SETS[name]
    folder = folder_of([f"{name}/{probe}"], data)
    if folder is None:
        raise ConfigError(f"set {name!r} is not there; name the folder that holds {name} with --data, or use {OWN!r}.")
    for path in sorted((folder / name).glob(pattern)):
        yield from _rows(path, count)


def _rows(path: Path, count: int) -> Iterator[Row]:
    if path.suffix in DIALECTS:
        yield Row(Constraint(DIALECTS[path.suffix], path.read_text(encoding="utf-8")))
    elif path.suffix == ".gz":
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")
        yield from map(_schema, map(json.loads, filter(None, lines[:count])))
    elif path.suffix == ".json":
        yield from map(_schema, json.loads(path.read_text(encoding="utf-8"))[:count])


def _schema(row: Mapping[str, Any]) -> Row:
    tests = [(test["data"], bool(test["valid"])) for test in row["tests"]]
    return Row(Constraint("json_schema", json.dumps(row["schema"], ensure_ascii=False)), tests)


def measure(rows: Iterator[Row], setup: Setup) -> Found:
    """Compile every constraint, and read its instances."""
    found = Found()
    for row in rows:
        guides, began = guides_for(setup), perf_counter()
        found.rows += 1
        try:
            guides(row.constraint, frozenset(setup.eos))
        except RequestError as problem:
            found.refusals[_cause(str(problem))] += 1
            continue
        found.compile_ms.append(1e3 * (perf_counter() - began))
        right = True
        for value, valid in row.tests:
            passed = _reads(guides, row.constraint, setup, json.dumps(value, ensure_ascii=False), found.mask_us)
            found.read[valid, passed] += 1
            right = right and passed == valid
        found.exact += right
    return found


def _cause(sentence: str) -> str:
    """What a refusal says, without what it says of this schema."""
    inside = sentence.partition("(")[2].rpartition(")")[0] or sentence
    return inside.partition(":")[0][:60]


def _reads(guides: Guides, wish: Constraint, setup: Setup, text: str, times: list[float]) -> bool:
    """Whether a text may be written, and all of it."""
    guide = guides(wish, frozenset(setup.eos))
    for token in setup.open_spelling("").encode(text.encode(errors="replace")):
        if not guide.masks([()])[0, token]:
            return False
        began = perf_counter()
        guide.advance(token)
        times.append(1e6 * (perf_counter() - began))
    return bool(guide.masks([()])[0, list(setup.eos)].all())


def vocabulary(tokenizer: str) -> Setup:
    """What compiles constraints over a tokenizer, without its model."""
    folder = Path(tokenizer)  # which may hold a tokenizer and no model
    spoken = FolderTokenizer(folder) if folder.is_dir() else Tokenizer.from_folder(tokenizer)
    speller = Speller(spoken)
    blank = setup_for(Config(), toy_by_name("toy:0"))
    eos = spoken.eos if spoken.eos is not None else spoken.vocab_size  # a token of its own, where there is none
    size = max(len(speller.pieces), eos + 1)
    return replace(blank, vocab=size, eos=(eos,), open_spelling=lambda _: speller)


def write(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Let the model write under the project's own schemas, plain and with each drafter."""
    plain = LLM(**{**config, "drafter": "none", "decoder": "autoregressive"})
    shared = {name: value for name, value in config.items() if name not in ("model", "drafter")}
    llms = {"plain": plain}
    llms |= {drafter: LLM(plain.model, plain.tokenizer, **shared, drafter=drafter) for drafter in order.drafters}
    known = [row.constraint for row in load(OWN, order.prompts, None) if _compiles(plain, row.constraint)]
    cases: list[dict[str, Any]] = []
    for name, how in SPACES.items():
        wishes = [replace(wish, name=f"{wish.name}:whitespace={how}") for wish in known]
        asked = [Sampling(**{"temperature": 0.0, "max_tokens": 96, **sampling, "constraint": wish}) for wish in wishes]
        texts = {drafter: _texts(llm, asked) for drafter, llm in llms.items()}
        wanted = [result.tokens for result in texts["plain"]]
        cases += [{"spaces": name, "drafter": by, **_told(found, wishes, wanted)} for by, found in texts.items()]
    return cases


def _compiles(llm: LLM, wish: Constraint) -> bool:
    try:
        llm.engine.members.guides(wish, frozenset())
    except RequestError:
        return False
    return True


def _texts(llm: LLM, asked: Sequence[Sampling]) -> list[Result]:
    """One after the other, once everything that is made at first use is there."""
    llm.generate(PROMPT, replace(asked[0], max_tokens=8))
    return [llm.generate(PROMPT, sampling)[0] for sampling in asked]


def _told(results: Sequence[Result], wishes: Sequence[Constraint], wanted: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """What became of one drafter's texts."""
    try:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    except ImportError as problem:
        raise ConfigError("forerun bench schema judges texts by jsonschema; pip install jsonschema.") from problem
    complete = [(r, w) for r, w in zip(results, wishes, strict=True) if r.finish_reason == "stop"]
    tokens, steps = sum(len(r.tokens) for r in results), sum(r.stats.steps for r in results)
    return {
        "texts": len(results),
        "complete": len(complete),
        "valid": sum(Draft202012Validator(json.loads(w.text)).is_valid(json.loads(r.text)) for r, w in complete),
        "as_plain": sum(r.tokens == tokens for r, tokens in zip(results, wanted, strict=True)),
        "tokens": tokens,
        "tokens_per_step": tokens / steps,
        "ms_per_token": asdict(Spread.of([1e3 * r.seconds / len(r.tokens) for r in results])),
    }


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Every set, then the texts."""
    torch.set_num_threads(1)
    setup = vocabulary(order.tokenizer)
    texts = write(order, config, sampling)
    return {
        "title": f"Schemas and grammars over {order.tokenizer} ({setup.vocab} tokens)",
        "benchmark": "schema",
        **machine.circumstances(),
        "machine": machine.facts(),
        "notes": [_note(case) for case in texts],
        "sets": {name: measure(load(name, order.prompts, order.data), setup).figures() for name in order.categories},
        "texts": texts,
    }


def _note(case: Mapping[str, Any]) -> str:
    who = f"Own schemas, white space {case['spaces']}, {case['drafter']}: {case['tokens_per_step']:.2f} tokens per step"
    shares = f"{case['as_plain']} of {case['texts']} texts as plain, {case['valid']} of {case['complete']} complete"
    return f"{who}, {Spread(**case['ms_per_token']).shown()} ms per token; {shares} ones valid."


def show(found: Mapping[str, Any]) -> None:
    """Two tables for people."""
    console = Console(width=None if Console().is_terminal else 120, highlight=False)
    columns = ("set", "compiled", "all right", "over", "under", "compile ms", "mask µs")
    caption = "over: valid instances refused; under: invalid ones let through; times are median / 99 % / worst"
    table = Table(*columns, title=found["title"], caption=caption, title_justify="left")
    for name, case in found["sets"].items():
        judged = f"{case['over_constrained']}/{case['valid']}", f"{case['under_constrained']}/{case['invalid']}"
        times = ["/".join(f"{value:.{digits}f}" for value in case[key]) for key, digits in _TIMES]
        table.add_row(name, f"{case['compiled']}/{case['schemas']}", str(case["right"]), *judged, *times)
    console.print(table)
    table = Table("spaces", "drafter", "complete", "valid", "as plain", "tokens a step", "ms a token")
    for case in found["texts"]:
        shares = [f"{case[key]}/{case['texts']}" for key in ("complete", "valid", "as_plain")]
        times = [f"{case['tokens_per_step']:.2f}", Spread(**case["ms_per_token"]).shown(2)]
        table.add_row(case["spaces"], case["drafter"], *shares, *times)
    console.print(table)


_TIMES = (("compile_ms", 1), ("mask_us", 0))
