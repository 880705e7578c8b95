"""JSON that means one thing to everybody: no name twice in an object, no NaN; neither deep nor of parts without end.

Brackets are counted over all bytes at once, so that no body costs more than reading it.
Does not: say what the values are; that is `schema.py`'s.
"""

import json
import re
from typing import Any

import numpy as np

DEPTH = 64  # brackets within brackets
PARTS = 2**18  # names, and values that a comma stands behind
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # one that does not end goes to the end: no way back
_OTHERS = bytes(set(range(256)) - set(b"[]{}:,"))
_STEPS = np.zeros(256, np.int8)
_STEPS[[*b"[{"]], _STEPS[[*b"]}"]] = 1, -1


def check(raw: bytes) -> None:
    """Raise ValueError, with half a sentence, for JSON that has two meanings or is too much."""
    marks = np.frombuffer(_TEXT.sub(b"", raw).translate(None, _OTHERS), np.uint8)
    if np.cumsum(_STEPS[marks], dtype=np.int64).max(initial=0) > DEPTH:
        raise ValueError(f"it is nested deeper than {DEPTH} levels")
    if np.count_nonzero(_STEPS[marks] == 0) > PARTS:
        raise ValueError(f"it has more than {PARTS} parts")
    json.loads(raw, object_pairs_hook=_object, parse_constant=_no_number)


def loads(raw: bytes) -> Any:  # noqa: ANN401 - any JSON
    """The value of a text that passes; ValueError for another."""
    check(raw)
    return json.loads(raw)


def _object(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice in an object")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")
