"""Constraints that are small automata: their states are values, and a matcher remembers those on its way.

An automaton over bytes is run over all tokens of the vocabulary at once, a byte of each at a time, so that what it
accepts may be written by any tokens whatever.
Does not: need a grammar library; what needs a stack is `grammars.py`'s.
"""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from forerun.guide import Matcher
from forerun.types import Bools, Ints, Spelling

S = TypeVar("S", bound=Hashable)
States = npt.NDArray[np.int32]
BYTES = 256
_KEPT = 64  # states whose tokens are remembered


class Rules(Generic[S]):
    """An automaton over tokens."""

    start: S

    @abstractmethod
    def mask(self, state: S) -> Bools:
        """Tokens that may follow [vocab]; not to be changed."""

    @abstractmethod
    def after(self, state: S, token: int) -> S:
        """The state behind an allowed token."""

    @abstractmethod
    def may_end(self, state: S) -> bool:
        """Whether the text is complete."""


class Walk(Matcher, Generic[S]):
    """Lifts rules: a matcher that remembers the states on its way."""

    def __init__(self, rules: Rules[S]) -> None:
        self._rules, self._states = rules, [rules.start]

    def mask(self) -> Bools:
        return self._rules.mask(self._states[-1]).copy()

    def may_end(self) -> bool:
        return self._rules.may_end(self._states[-1])

    def push(self, token: int) -> bool:
        if not self._rules.mask(self._states[-1])[token]:
            return False
        self._states.append(self._rules.after(self._states[-1], token))
        return True

    def pop(self, count: int) -> None:
        del self._states[len(self._states) - count :]


@lru_cache(maxsize=4)
def letters(spelling: Spelling, vocab: int) -> tuple[tuple[Ints, Ints], ...]:
    """By place: the tokens that have a byte there, and that byte. Special tokens have none."""
    found: list[tuple[list[int], list[int]]] = []
    for token, piece in enumerate(spelling.pieces[:vocab]):
        for place, byte in enumerate(piece if isinstance(piece, bytes) else b""):
            if place == len(found):
                found.append(([], []))
            found[place][0].append(token)
            found[place][1].append(byte)
    return tuple((np.array(tokens), np.array(values)) for tokens, values in found)


@dataclass(eq=False)
class ByteRules(Rules[int]):
    """An automaton over bytes. Its last state is that of texts that cannot be; nothing leads out of it."""

    table: States  # [states, 256], the state behind a state and a byte
    ends: Sequence[bool]  # in which states the text is complete
    letters: Sequence[tuple[Ints, Ints]]
    vocab: int
    silent: bool = False  # whether tokens without bytes are allowed, wherever they stand
    reached: dict[int, States] = field(default_factory=dict)  # state -> that behind every token [vocab]

    start = 0

    def _behind(self, state: int) -> States:
        found = self.reached.get(state)
        if found is None:
            found = np.full(self.vocab, state if self.silent else len(self.table) - 1, np.int32)
            if self.letters:
                found[self.letters[0][0]] = state
            for tokens, values in self.letters:
                found[tokens] = self.table[found[tokens], values]
            if len(self.reached) == _KEPT:
                del self.reached[next(iter(self.reached))]
            self.reached[state] = found
        return found

    def mask(self, state: int) -> Bools:
        allowed: Bools = self._behind(state) < len(self.table) - 1
        return allowed

    def after(self, state: int, token: int) -> int:
        return int(self._behind(state)[token])

    def may_end(self, state: int) -> bool:
        return self.ends[state]


def trie(words: Sequence[bytes]) -> tuple[States, list[bool]]:
    """The automaton of the texts that are one of these words, and in which of its states they are complete."""
    prefixes = sorted({word[:end] for word in words for end in range(len(word) + 1)}, key=lambda p: (len(p), p))
    nodes = {prefix: state for state, prefix in enumerate(prefixes)}
    table = np.full((len(nodes) + 1, BYTES), len(nodes), np.int32)
    for prefix in prefixes[1:]:
        table[nodes[prefix[:-1]], prefix[-1]] = nodes[prefix]
    known = set(words)
    return table, [prefix in known for prefix in prefixes]
