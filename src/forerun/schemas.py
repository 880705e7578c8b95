"""How large a JSON schema may be, alone or within a grammar: all of it is looked at before anything is compiled.

Does not: know what keywords mean, but that a `$ref` leads somewhere; say what is wrong with what is no JSON.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forerun.errors import RequestError

_SCHEMA = re.compile(r"%json\s*")  # in a grammar
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Bounds:
    """Of every schema; `most` is that of the whole text."""

    most: int = 65_536  # characters
    depth: int = 64  # brackets within brackets; a schema within a schema takes one or two
    nodes: int = 2000  # objects and lists
    names: int = 256  # of one object
    entries: int = 1000  # of one list


def measure(name: str, text: str, bounds: Bounds) -> None:
    """RequestError for a schema that is too large in one way, or that refers to another place."""
    _measured(name, text, _SPACE.match(text).end(), bounds)  # type: ignore[union-attr] # it matches anywhere


def measure_all(name: str, grammar: str, bounds: Bounds) -> None:
    """The same of every schema in a grammar."""
    found = _SCHEMA.search(grammar)
    while found is not None:
        found = _SCHEMA.search(grammar, _measured(name, grammar, found.end(), bounds))


def _measured(name: str, text: str, at: int, bounds: Bounds) -> int:
    """Where the value that begins there ends."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise _refusal(name, "is nested", "hundreds of levels deep", bounds.depth) from None
    except ValueError:
        return at
    _look(name, value, bounds)
    return end


def _look(name: str, schema: Any, bounds: Bounds) -> None:  # noqa: ANN401 - JSON
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    nodes, own = 0, {"", *_names(schema)}
    while waiting:
        node, depth = waiting.pop()
        if not isinstance(node, (dict, list)):
            continue
        nodes += 1
        counts = (depth, bounds.depth, "levels"), (nodes, bounds.nodes, "objects and lists")
        wide, long = (bounds.names, "names in one object"), (bounds.entries, "entries in one list")
        for got, most, what in (*counts, (len(node), *(wide if isinstance(node, dict) else long))):
            if got > most:
                raise _refusal(name, "has", f"{got} {what}", most)
        place = node.get("$ref") if isinstance(node, dict) else None
        if isinstance(place, str) and place.partition("#")[0] not in own:
            raise RequestError(f"constraint {name!r} refers to {place!r:.60}; put it into the schema's own $defs.")
        waiting += [(inner, depth + 1) for inner in (node.values() if isinstance(node, dict) else node)]


def _names(schema: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """What the whole schema calls itself."""
    for word in ("$id", "id") if isinstance(schema, dict) else ():
        if isinstance(name := schema.get(word), str):
            yield name.partition("#")[0]


def _refusal(name: str, has: str, what: str, most: int) -> RequestError:
    return RequestError(f"constraint {name!r} {has} {what} and the limit is {most}; make it smaller.")
