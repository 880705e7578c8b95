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
from forerun.errors import RequestError
from forerun.grammars import compiled, grammar_of
from forerun.guide import Matcher
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
    class Options:
        """`whitespace`: a space, or a line break and its indentation, may stand between values.

        `lenient`: keywords without support are ignored, and not refused. A schema beyond the other options is refused.
        """

        whitespace: bool = True
        lenient: bool = False
        most: int = 65_536  # characters of the schema
        depth: int = 64  # brackets within brackets; a schema within a schema takes one or two
        nodes: int = 2000  # objects and lists
        names: int = 256  # of one object
        entries: int = 1000  # of one list

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        text, o = within("json_schema", text, self.options.most), self.options
        _measure(text, o)
        text = _meant(text)
        return compiled("json_schema", self.setup, lambda: grammar_of(text, whitespace=o.whitespace, lenient=o.lenient))


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


def _measure(text: str, o: JsonSchemaCompiler.Options) -> None:
    """RequestError for a schema that is too large in one way, or that refers to another place."""
    try:
        waiting: list[tuple[Any, int]] = [(json.loads(text), 1)]
    except RecursionError:
        raise _refusal("is nested", "hundreds of levels deep", o.depth) from None
    except ValueError:
        return  # the compiler says what is wrong
    nodes = 0
    while waiting:
        node, depth = waiting.pop()
        if not isinstance(node, (dict, list)):
            continue
        nodes += 1
        counts = (depth, o.depth, "levels"), (nodes, o.nodes, "objects and lists")
        own = (o.names, "names in one object") if isinstance(node, dict) else (o.entries, "entries in one list")
        for got, most, what in (*counts, (len(node), *own)):
            if got > most:
                raise _refusal("has", f"{got} {what}", most)
        if isinstance(node, dict) and isinstance(place := node.get("$ref"), str) and not place.startswith("#"):
            raise RequestError(f"constraint 'json_schema' refers to {place!r:.60}; put it into the schema's own $defs.")
        waiting += [(inner, depth + 1) for inner in (node.values() if isinstance(node, dict) else node)]


def _refusal(has: str, what: str, most: int) -> RequestError:
    return RequestError(f"constraint 'json_schema' {has} {what} and the limit is {most}; make it smaller.")
