"""Tokens -> text while it grows: no character is split, and nothing after a stop string is shown.

Text is given out once later tokens cannot change it; `finish` gives the rest, so that all pieces together equal the
decoded whole. Does not: decode by itself; the tokenizer's `decode` is the only judge of what tokens mean. Nor take
back what was shown, where a tokenizer with byte fallback turns a whole run of bytes that is no text into U+FFFD.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Incremental text of one request.

    Decodes a window: a few tokens that are already shown, for what depends on neighbours (leading spaces), then the
    new ones. A piece that ends in U+FFFD may be half a character and waits.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_CONTEXT:])
        self._shown = self._decode(self._window) if self._window else ""
        if self._shown.endswith("\ufffd"):  # the prompt ends within a character, which is not ours to mend
            self._window, self._shown = [], ""
        self._fixed = len(self._window)

    def push(self, *tokens: int) -> str:
        """Text that these tokens make certain; often "", sometimes several characters."""
        text = self._decode([*self._window, *tokens])
        if text.endswith("\ufffd") and len(tokens) > 1:
            return "".join(map(self.push, tokens))
        self._window += tokens
        if text.endswith("\ufffd") or len(text) <= len(self._shown):
            return ""
        return self._give(text)

    def finish(self) -> str:
        """What still waited: half a character becomes U+FFFD, as in the decoded whole."""
        return self._give(self._decode(self._window))

    def _give(self, text: str) -> str:
        piece = text[len(self._shown) :]
        self._window, self._shown = self._behind(self._window[self._fixed :])
        self._fixed = len(self._window)
        return piece

    def _behind(self, shown: list[int]) -> tuple[list[int], str]:
        """Tokens that the next ones are decoded behind, with their text: one if it ends no character begun before."""
        last = self._decode(shown[-1:]) if shown else ""
        return (shown, self._decode(shown)) if not last or "\ufffd" in last else (shown[-1:], last)


_CONTEXT = 4  # tokens of the prompt that the first window begins with
_ALONE = 2**16  # tokens whose text is kept


def remembering(decode: Decode) -> Decode:
    """The same, but what a token says alone, which is asked whenever one was shown, is decoded once."""
    alone = lru_cache(_ALONE)(lambda token: decode([token]))
    return lambda tokens: alone(tokens[0]) if len(tokens) == 1 else decode(tokens)


class StopFinder:
    """Holds back text that may be the beginning of a stop string, and ends the text before the first one found."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._held = tuple(stops), ""

    def __bool__(self) -> bool:
        """Whether there is anything to find."""
        return bool(self._stops)

    def push(self, piece: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string was completed; nothing follows it then."""
        if not self._stops:
            return piece, False
        self._held += piece
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            return self._held[: min(found)], True
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
