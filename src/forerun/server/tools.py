"""Calls of tools: what holds a text to them, and how they are read back from it, whole or while it grows.

How calls are written is the chat template's to say, so a form is known by what the template's text has. What is not
a call of a given tool stays text.
Does not: run a tool; check arguments by their schema where the text is free; split a call over parts of a stream.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from forerun.types import Constraint

Json = dict[str, Any]
MOST = 16  # calls that a text is held to
_SPECIAL = "[TOOL_CALLS]"  # which a tokenizer may show or not


@dataclass(frozen=True)
class Form:
    """How calls stand in a text."""

    before: str
    between: str
    after: str
    arguments: str = "arguments"  # what they are called
    tags: bool = False  # whether text may stand beside them; else calls are all of it
    most: int = MOST


@dataclass(frozen=True)
class _Sign:
    """What a template has in it that knows a form."""

    form: Form
    has: str
    lacks: tuple[str, ...] = ()  # signs of another form with the same tags


BARE = Form("[", ", ", "]")  # for templates of no form
_SIGNS = (
    _Sign(
        Form("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>", tags=True),
        has="<tool_call>",
        lacks=("<function=", "<arg_key>"),
    ),
    _Sign(BARE, has=_SPECIAL, lacks=("[ARGS]", "[CALL_ID]")),
    _Sign(Form("", "", "", "parameters", most=1), has='{"name": function name, "parameters":'),
)


def form_of(template: str) -> Form | None:
    """How a chat template has calls written; None where that is not known."""
    return next((s.form for s in _SIGNS if s.has in template and not any(sign in template for sign in s.lacks)), None)


def held(form: Form, functions: Sequence[Json], *, several: bool) -> Constraint:
    """Calls of these functions and nothing else; every schema is one of its own, as it may refer to its root."""
    rules = [f"start: {_quoted(form.before)} call{_more(form) if several else ''} {_quoted(form.after)}"]
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(functions))))
    for i, function in enumerate(functions):
        opening = f'{{"name": {json.dumps(function["name"])}, "{form.arguments}": '
        schema = {"type": "object", **(function.get("parameters") or {})}
        rules += [f'call_{i}: {_quoted(opening)} arguments_{i} "}}"', f"arguments_{i}: %json {json.dumps(schema)}"]
    return Constraint("lark", "\n".join(rules))


def _more(form: Form) -> str:
    return f" ({_quoted(form.between)} call){{0,{form.most - 1}}}" if form.most > 1 else ""


def _quoted(text: str) -> str:
    return json.dumps(text)


@dataclass(frozen=True)
class Call:
    """One call, in OpenAI's shape but for its place among the others."""

    name: str
    arguments: str  # JSON

    def said(self) -> Json:
        """Whole, with an id of its own."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{token_hex(12)}", "type": "function", "function": function}


@dataclass(frozen=True)
class Calling:
    """What the calls of one request may be."""

    form: Form
    names: frozenset[str]
    most: int = MOST

    def reader(self) -> "Reader":
        """For one choice."""
        return (_Tagged if self.form.tags else _Alone)(self)

    def calls(self, value: Any) -> list[Call]:  # noqa: ANN401 - whatever JSON a model wrote
        """Calls as a model wrote them; none where one of them is none."""
        each = value if isinstance(value, list) else [value]
        found = [self._call(one) for one in each]
        return [call for call in found if call is not None] if None not in found else []

    def _call(self, value: Any) -> Call | None:  # noqa: ANN401
        if not isinstance(value, Mapping) or value.get("name") not in self.names:
            return None
        arguments = value.get(self.form.arguments, {})
        return Call(value["name"], json.dumps(arguments)) if isinstance(arguments, Mapping) else None


class Reader(ABC):
    """Parts a growing text into what is said and what is called."""

    def __init__(self, calling: Calling) -> None:
        self.calling, self._held, self._called = calling, "", 0

    def hear(self, text: str, *, over: bool) -> tuple[str, list[Call]]:
        """What is certain by now; with `over` all that is left."""
        self._held += text
        said, calls = self._read(over=over)
        calls = calls[: max(0, self.calling.most - self._called)]
        self._called += len(calls)
        return said, calls

    @abstractmethod
    def _read(self, *, over: bool) -> tuple[str, list[Call]]: ...


class _Tagged(Reader):
    """Calls in tags, anywhere; the space behind a call is its own."""

    def __init__(self, calling: Calling) -> None:
        super().__init__(calling)
        self._opening, self._closing = calling.form.before.strip(), calling.form.after.strip()
        self._behind = False  # whether nothing but space was heard since a call

    def _read(self, *, over: bool) -> tuple[str, list[Call]]:
        said, calls = "", list[Call]()
        while True:
            self._held = self._held.lstrip() if self._behind else self._held
            text, mark, rest = self._held.partition(self._opening)
            self._behind = self._behind and not text
            said += text
            if not mark:
                break
            found, behind = self._call(rest, over=over)
            if not found and not over:
                self._held = mark + rest
                return said, calls
            said += "" if found else mark
            calls += found
            self._held, self._behind = behind, bool(found)
        kept = 0 if over else _begun(text, self._opening)
        self._held = text[len(text) - kept :]
        return said[: len(said) - kept], calls

    def _call(self, text: str, *, over: bool) -> tuple[list[Call], str]:
        """What is called in the tag whose inside begins a text, and what is behind it; nothing before it is closed."""
        value, end = _json(text) if over or self._closing in text else (None, 0)
        behind = text[end:].lstrip()
        closed = over or behind.startswith(self._closing)
        found = self.calling.calls(value) if closed else []
        return found, behind.removeprefix(self._closing) if found else text


class _Alone(Reader):
    """Calls that are all of a text; one that begins otherwise has none."""

    def __init__(self, calling: Calling) -> None:
        super().__init__(calling)
        self._free = False  # whether the text has begun as none of them does

    def _read(self, *, over: bool) -> tuple[str, list[Call]]:
        bare = self._held.strip()
        self._free = self._free or (bool(bare) and bare[0] not in "[{")
        if not self._free and not over:
            return "", []
        text, self._held = self._held, ""
        calls = [] if self._free else self._whole(bare.removeprefix(_SPECIAL))
        return ("", calls) if calls else (text, [])

    def _whole(self, text: str) -> list[Call]:
        value, end = _json(text)
        return self.calling.calls(value) if end == len(text) else []


def _json(text: str) -> tuple[Any, int]:
    """The JSON value that a text begins with, and where that ends; (None, 0) where there is none yet."""
    inner = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(inner)
    except (ValueError, RecursionError):
        return None, 0
    return value, len(text) - len(inner) + end


def _no_number(word: str) -> None:
    raise ValueError(word)  # NaN and its like are not JSON


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of a text may begin a mark."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
