"""Which schemas and grammars compile, and whether instances of these are judged as a validator judges them.

Every instance is read token by token as if it were written. A valid one that is refused is over-constrained, an invalid
one that is let through under-constrained; of those that compile, as what is not supported is refused at once
(2501.10868). Each is given its cause: `format`, which validators ignore and llguidance knows; `form`, where the value
can be written with its keys in another order or its numbers spelled otherwise; `limit`, where llguidance gives up.
Times are the processor's own, as programs beside this one would count too.
Does not: ask whether two ways to write a value are equally likely.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from pathlib import Path
from time import process_time, thread_time
from typing import Any

from llguidance import LLMatcher

from forerun.bench.figures import quantile
from forerun.bench.workloads import folder_of
from forerun.build import guides_for
from forerun.errors import ConfigError, RequestError, unknown
from forerun.grammars import vocabulary
from forerun.guide import Guide
from forerun.types import Constraint, Setup, Spelling

OWN = "own"
SETS = {  # a file that each has, and all that it is made of
    "jsonschemabench": ("BFCL.jsonl.gz", "*.jsonl.gz"),
    "json_schema_test_suite": ("tests/draft2020-12/type.json", "tests/draft*/*.json"),
    "grammars": ("llama.cpp/json.gbnf", "**/*.*"),
}
DIALECTS = {".gbnf": "gbnf", ".ebnf": "gbnf", ".lark": "lark"}
_DRAFT7 = "http://json-schema.org/draft-07/schema#"
_LARGE = 1 << 22  # of anything in a schema: limits by size are a server's, and say nothing of the grammar
_SIZED = ",".join(f"{limit}={_LARGE}" for limit in ("most", "nodes", "names", "entries"))
_MANY = 12  # rows of the table of refusals
_TRIES = 2000  # ways to go on that are looked at, while a value is written in another form


@dataclass(frozen=True)
class Row:
    """A constraint, and texts that should be let through or not."""

    constraint: Constraint
    tests: Sequence[tuple[Any, bool]] = ()
    schema: Any = None


@dataclass
class Found:
    """What became of one part of a set."""

    rows: int = 0
    alone: int = 0  # schemas that llguidance compiles by itself, with its defaults
    compile_ms: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    read: Counter[tuple[bool, bool]] = field(default_factory=Counter)  # valid, let through
    causes: Counter[str] = field(default_factory=Counter)  # of wrong judgements
    exact: int = 0  # schemas that compile, and judge every instance rightly

    def figures(self) -> dict[str, Any]:
        """As the report has it."""
        valid, invalid = (self.read[kind, True] + self.read[kind, False] for kind in (True, False))
        return {
            "schemas": self.rows,
            "compiled": len(self.compile_ms),
            "llguidance": self.alone,
            "right": self.exact,
            "valid": valid,
            "over_constrained": self.read[True, False],
            "invalid": invalid,
            "under_constrained": self.read[False, True],
            "causes": dict(self.causes.most_common()),
            "compile_ms": [quantile(self.compile_ms, share) for share in (0.5, 0.99, 1.0)],
            "llguidance_ms": [quantile(self.alone_ms, share) for share in (0.5, 0.99, 1.0)],
            "mask_us": [quantile(self.mask_us, share) for share in (0.5, 0.99, 1.0)],
            "tokens": len(self.mask_us),
            "refusals": dict(self.refusals.most_common(_MANY)),
        }


def parts(name: str, count: int, data: Path | None) -> Iterator[tuple[str, Iterator[Row]]]:
    """The parts of a set by name, each with its first `count` constraints; of files with few, of every file."""
    if name == OWN:
        lines = (files("forerun.bench") / "schemas.jsonl").read_text(encoding="utf-8").split("\n")
        yield OWN, (_schema(json.loads(line)) for line in lines[:count] if line)
        return
    if name not in SETS:
        raise ConfigError(unknown("forerun bench schema", "set", name, (OWN, *SETS)))
    probe, pattern = SETS[name]
    folder = folder_of([f"{name}/{probe}"], data)
    if folder is None:
        raise ConfigError(f"set {name!r} is not there; name the folder that holds {name} with --data, or use {OWN!r}.")
    grouped: dict[str, list[Path]] = {}
    for path in sorted((folder / name).glob(pattern)):
        if path.suffix in (".gz", ".json", *DIALECTS):
            grouped.setdefault(_part(path, folder / name), []).append(path)
    for part, paths in grouped.items():
        yield f"{name} {part}", (row for path in paths for row in islice(_rows(path), count))


def load(name: str, count: int, data: Path | None) -> Iterator[Row]:
    """The constraints of all parts of a set."""
    for _, rows in parts(name, count, data):
        yield from rows


def _part(path: Path, folder: Path) -> str:
    if path.suffix == ".json":
        return path.parent.name
    return path.relative_to(folder).parts[0].removesuffix(".jsonl.gz")


def _rows(path: Path) -> Iterator[Row]:
    if path.suffix in DIALECTS:
        yield Row(Constraint(DIALECTS[path.suffix], path.read_text(encoding="utf-8")))
    elif path.suffix == ".gz":
        lines = gzip.decompress(path.read_bytes()).decode().split("\n")  # texts have further kinds of line breaks
        yield from map(_schema, map(json.loads, filter(None, lines)))
    else:
        early = path.parent.name == "draft7"  # whose schemas do not say it
        for row in json.loads(path.read_text(encoding="utf-8")):
            said = isinstance(row["schema"], dict) and early
            yield _schema({**row, "schema": {"$schema": _DRAFT7, **row["schema"]}} if said else row)


def _schema(row: Mapping[str, Any]) -> Row:
    tests = [(test["data"], bool(test["valid"])) for test in row["tests"]]
    text = json.dumps(row["schema"], ensure_ascii=False)
    return Row(Constraint(f"json_schema:{_SIZED}", text), tests, row["schema"])


def measure(rows: Iterator[Row], setup: Setup) -> Found:
    """Compile every constraint, and read its instances."""
    found = Found()
    for row in rows:
        found.rows += 1
        if row.constraint.name not in DIALECTS.values():
            _alone(row.constraint.text, setup, found)
        guides, began = guides_for(setup), process_time()
        try:
            guides(row.constraint, frozenset(setup.eos))
        except RequestError as problem:
            found.refusals[_cause(str(problem))] += 1
            continue
        found.compile_ms.append(1e3 * (process_time() - began))
        wrong = 0
        for value, valid in row.tests:
            guide = guides(row.constraint, frozenset(setup.eos))
            passed = _reads(guide, setup, json.dumps(value, ensure_ascii=False), found.mask_us)
            found.read[valid, passed] += 1
            if passed != valid:
                wrong += 1
                found.causes[_why(row, value, guide, setup, passed=passed)] += 1
        found.exact += not wrong
    return found


def _alone(schema: str, setup: Setup, found: Found) -> None:
    """What llguidance makes of a schema by itself."""
    tokens, began = vocabulary(setup.open_spelling(""), setup.vocab, setup.eos), process_time()
    try:
        problem = LLMatcher(tokens, LLMatcher.grammar_from_json_schema(schema), log_level=0).get_error()
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        problem = repr(error)
    if not problem:
        found.alone += 1
        found.alone_ms.append(1e3 * (process_time() - began))


def _cause(sentence: str) -> str:
    """What a refusal says, without what it says of this schema."""
    inside = sentence.partition("(")[2].rpartition(")")[0] or sentence
    return inside.partition(":")[0][:60]


def _reads(guide: Guide, setup: Setup, text: str, times: list[float]) -> bool:
    """Whether a text may be written, and all of it."""
    for token in setup.open_spelling("").encode(text.encode(errors="replace")):
        began = thread_time()
        if not guide.masks([()])[0, token]:
            return False
        guide.advance(token)
        times.append(1e6 * (thread_time() - began))
    return bool(guide.masks([()])[0, list(setup.eos)].all())


def _why(row: Row, value: Any, guide: Guide, setup: Setup, *, passed: bool) -> str:  # noqa: ANN401 - JSON
    """The cause of a wrong judgement; `guide` stands where it was made."""
    if guide.trouble:
        return "limit"
    free = Constraint(row.constraint.name, json.dumps(_free(row.schema), ensure_ascii=False))
    again = [guides_for(setup)(wish, frozenset(setup.eos)) for wish in (free, row.constraint)]
    right, text = validator(row.schema).is_valid(value), json.dumps(value, ensure_ascii=False)
    if right and free != row.constraint and _reads(again[0], setup, text, []):
        return "format"
    written = right and not passed and any(_Writer(again[1], setup.open_spelling("")).ways((), value))
    return "form" if written else "other"


def _free(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The schema without formats."""
    if isinstance(schema, dict):
        return {name: _free(part) for name, part in schema.items() if name != "format" or not isinstance(part, str)}
    return [_free(part) for part in schema] if isinstance(schema, list) else schema


def validator(schema: Any) -> Any:  # noqa: ANN401 - JSON, and the library's
    """What another library judges by."""
    try:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
    except ImportError as problem:
        raise ConfigError("forerun bench schema judges texts by jsonschema; pip install jsonschema.") from problem
    return validator_for(schema, default=Draft202012Validator)(schema)


class _Writer:
    """Ways to write a value, with its keys in any order and whole numbers without a point."""

    def __init__(self, guide: Guide, spelling: Spelling) -> None:
        self._guide, self._spelling, self._left = guide, spelling, _TRIES

    def _on(self, path: tuple[int, ...], text: str) -> Iterator[tuple[int, ...]]:
        longer = (*path, *self._spelling.encode(text.encode(errors="replace")))
        self._left -= 1
        if self._left > 0 and self._guide.allows([longer])[0]:
            yield longer

    def ways(self, path: tuple[int, ...], value: Any) -> Iterator[tuple[int, ...]]:  # noqa: ANN401 - JSON
        """Tokens that write a value behind a path."""
        if isinstance(value, dict):
            for begun in self._on(path, "{"):
                yield from self._fields(begun, list(value.items()))
        elif isinstance(value, list):
            for begun in self._on(path, "["):
                yield from self._items(begun, value)
        else:
            whole = isinstance(value, float) and value.is_integer()
            yield from self._on(path, json.dumps(int(value) if whole else value, ensure_ascii=False))

    def _items(self, path: tuple[int, ...], values: Sequence[Any], mark: str = "") -> Iterator[tuple[int, ...]]:
        if not values:
            yield from self._on(path, "]")
            return
        for begun in self._on(path, mark) if mark else (path,):
            for way in self.ways(begun, values[0]):
                yield from self._items(way, values[1:], ", ")

    def _fields(
        self, path: tuple[int, ...], fields: Sequence[tuple[str, Any]], mark: str = ""
    ) -> Iterator[tuple[int, ...]]:
        if not fields:
            yield from self._on(path, "}")
        for i, (name, value) in enumerate(fields):
            for begun in self._on(path, f"{mark}{json.dumps(name, ensure_ascii=False)}: "):
                for way in self.ways(begun, value):
                    yield from self._fields(way, [*fields[:i], *fields[i + 1 :]], ", ")
