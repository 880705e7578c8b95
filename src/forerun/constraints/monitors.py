"""What may come next is said by the caller's own function, asked again at every place of the text (2306.10763).

A monitor is given the text so far and returns None where it has no opinion, or the continuations of which the text must
take one: a token may write a beginning of one of them, and no more. "" among them: the text may end here. Monitors are
registered by whoever builds the engine, `LLM(..., monitors={"name": function})`; a request says
the name, or is a table.
Does not: import anything by name; show a monitor the prompt (make one per prompt for that); look inside a token that
is written where the monitor has no opinion; let a token reach beyond a continuation, so give longer ones as well.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.constraints.contract import Compiler, within
from forerun.errors import RequestError, unknown
from forerun.grammars import brief
from forerun.guide import Matcher
from forerun.types import Bools, Facts, Ints, Monitor, Setup
from forerun.walk import ByteRules, letters, trie


class MonitorsCompiler(Compiler):
    """Text: a registered monitor's name, or a JSON table: what follows what, as in {"self.": ["name", "size"]}."""

    facts = Facts(keys=("monitors",), paper="2306.10763", evidence="docs/results/README.md#guided")
    example = '{"a": ["b", "ca"], "b": ["c"]}'

    @dataclass(frozen=True)
    class Options:
        """`most` characters of a table."""

        most: int = 65_536

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        text, known = within("monitors", text, self.options.most), self.setup.monitors
        if text.lstrip().startswith("{"):
            monitor: Monitor = Table(_table(text))
        elif text in known:
            monitor = known[text]
        else:
            message = unknown("this engine", "monitor", text[:40], known)
            raise RequestError(f"constraint 'monitors': {message} LLM(monitors=...) registers them.")
        pieces, vocab = self.setup.open_spelling(""), self.setup.vocab
        spelled = [piece if isinstance(piece, bytes) else b"" for piece in pieces.pieces[:vocab]]
        return lambda: Watched(monitor, spelled, letters(pieces, vocab), vocab)


def _table(text: str) -> dict[str, list[str]]:
    try:
        found: Any = json.loads(text)
    except ValueError as problem:
        raise RequestError(f"constraint 'monitors' has a table that is no JSON ({problem}); correct it.") from problem
    lists = [(key, value) for key, value in found.items() if key and isinstance(value, list) and value]
    if len(lists) < len(found) or not all(isinstance(word, str) and word for _, words in lists for word in words):
        raise RequestError("constraint 'monitors' has a table of other things; give texts, each with a list of texts.")
    return found  # type: ignore[no-any-return] # as was just seen


@dataclass(frozen=True)
class Table:
    """A monitor that is data: after each of some texts one of its continuations comes."""

    follows: Mapping[str, Sequence[str]]

    def __call__(self, text: str) -> list[str] | None:
        for before, words in self.follows.items():
            place = text.rfind(before)
            begun = text[place + len(before) :]
            if place >= 0 and begun not in words:
                rest = [word[len(begun) :] for word in words if word.startswith(begun)]
                if rest:
                    return rest
        return None


class Watched(Matcher):
    """Where a text stands under a monitor."""

    def __init__(
        self, monitor: Monitor, spelled: Sequence[bytes], places: Sequence[tuple[Ints, Ints]], vocab: int
    ) -> None:
        self._monitor, self._spelled, self._places, self._vocab = monitor, spelled, places, vocab
        self._texts, self._trouble = [b""], ""

    def _asked(self) -> Sequence[str] | None:
        """What the monitor says here; nothing may follow where it fails."""
        self._trouble = ""
        try:
            said = self._monitor(self._texts[-1].decode(errors="replace"))
            return None if said is None else [str(word) for word in said]
        except Exception as problem:  # noqa: BLE001 - the caller's own function may raise whatever it likes
            self._trouble = f"the request's monitor failed ({brief(repr(problem))}); mend it."
            return []

    def mask(self) -> Bools:
        said = self._asked()
        if said is None:
            return np.ones(self._vocab, np.bool_)
        words = [word.encode(errors="surrogatepass") for word in said if word]
        if not words:
            return np.zeros(self._vocab, np.bool_)
        return ByteRules(*trie(words), self._places, self._vocab).mask(0)

    def may_end(self) -> bool:
        said = self._asked()
        return said is None or "" in said

    def push(self, token: int) -> bool:
        if not self.mask()[token]:
            return False
        self._texts.append(self._texts[-1] + (self._spelled[token] if token < len(self._spelled) else b""))
        return True

    def pop(self, count: int) -> None:
        del self._texts[len(self._texts) - count :]

    def trouble(self) -> str:
        self._asked()
        return self._trouble
