"""A JSON value that is valid by a JSON Schema (Geng et al. 2025, 2501.10868).

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
        schema = json.loads(text) if '"$ref"' in text else None
        early = isinstance(schema, dict) and _EARLY.search(str(schema.get("$schema")))
        return json.dumps(_alone(schema)) if early else text
    except (ValueError, RecursionError):
        return text


def _alone(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The schema without what stands beside a $ref."""
    if isinstance(schema, list):
        return [_alone(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    refers = isinstance(schema.get("$ref"), str)
    kept = {name: part for name, part in schema.items() if not (refers and name in _COUNTS)}
    return {name: part if name in _DATA else _alone(part) for name, part in kept.items()}
