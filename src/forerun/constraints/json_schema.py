"""A JSON value that is valid by a JSON Schema (Geng et al. 2025, 2501.10868).

What llguidance has no word for and can be said in others is: `not` of a `not`, `dependencies` and their later names.
Does not: check formats that llguidance does not know, or fetch schemas from elsewhere: such a schema is refused. Let
properties come in another order than the schema's, or a whole number be written as 1.0, though both are valid.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled, grammar_of, written
from forerun.guide import Matcher
from forerun.schemas import Bounds, measure
from forerun.types import Facts, Setup

_EARLY = re.compile(r"/draft-0[3-7]/")  # beside a $ref nothing else counts
_DATA = ("enum", "const", "default", "examples")  # what is below is no schema
_IMPLYING = ("dependencies", "dependentRequired", "dependentSchemas")  # where a name is, further things are needed
_NAMED = ("properties", "patternProperties", "$defs", "definitions", *_IMPLYING)  # what is below are names
_COUNTS = {
    *("type", *_DATA[:2], "format", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", "properties", "required", "additionalProperties"),
    *("patternProperties", "minProperties", "maxProperties", "items", "additionalItems", "minItems", "maxItems"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependencies", "propertyNames", "contains"),
}


class JsonSchemaCompiler(Compiler):
    """Text: the schema."""

    facts = Facts(keys=("jsonschemabench",), paper="2501.10868", evidence="docs/results/README.md#schemas")
    example, words = '{"enum": [1, 12, 21]}', ("1", "2", "12")

    @dataclass(frozen=True)
    class Options(Bounds):
        """`whitespace`: a space, or a line break and its indentation, may stand between values.

        `lenient`: keywords without support are ignored, and not refused. A schema beyond the other options is refused.
        """

        whitespace: bool = True
        lenient: bool = False

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def grammar(self, text: str) -> str:
        o = self.options
        measure("json_schema", within("json_schema", text, o.most), o)
        meant = _meant(text)
        return written("json_schema", lambda: grammar_of(meant, whitespace=o.whitespace, lenient=o.lenient))

    def compile(self, text: str) -> Callable[[], Matcher]:
        return compiled("json_schema", self.setup, self.grammar(text))


def _meant(text: str) -> str:
    """The schema as llguidance has to be told it: what is not JSON is its to refuse."""
    if text.strip() == "true":
        return "{}"
    try:
        schema = json.loads(text) if any(f'"{name}"' in text for name in ("$ref", "not", *_IMPLYING)) else None
        early = isinstance(schema, dict) and _EARLY.search(str(schema.get("$schema")))
        known = _alone(schema) if early else schema
        told = _restated(known)
        return text if told == schema else json.dumps(told)
    except (ValueError, RecursionError):
        return text


def _alone(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The schema without what stands beside a $ref."""
    if not isinstance(schema, dict):
        return _inside(_alone, schema)
    refers = isinstance(schema.get("$ref"), str)
    return _inside(_alone, {name: part for name, part in schema.items() if not (refers and name in _COUNTS)})


def _restated(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """What llguidance does not know, in words that it does: not not A is A, and A implies B is no A, or B."""
    known = _inside(_restated, schema)
    if not isinstance(known, dict) or not isinstance(known.get("allOf", []), list):
        return known
    parts = list[Any]()
    if isinstance(denied := known.get("not"), dict) and denied.keys() == {"not"}:
        parts.append(known.pop("not")["not"])
    for word in _IMPLYING:
        if isinstance(known.get(word), dict):
            needs = {name: {"required": need} if isinstance(need, list) else need for name, need in known[word].items()}
            parts += [{"anyOf": [{"properties": {name: False}}, need]} for name, need in needs.items()]
            del known[word]
    return {**known, "allOf": [*known.get("allOf", ()), *parts]} if parts else known


def _inside(change: Callable[[Any], Any], schema: Any) -> Any:  # noqa: ANN401 - JSON
    """A copy whose sub-schemas are changed; names of properties are no keywords."""
    if isinstance(schema, list):
        return [change(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _part(change, name, part) for name, part in schema.items()}


def _part(change: Callable[[Any], Any], name: str, part: Any) -> Any:  # noqa: ANN401 - JSON
    if name in _DATA:
        return part
    if name in _NAMED and isinstance(part, dict):
        return {key: change(inner) for key, inner in part.items()}
    return change(part)
