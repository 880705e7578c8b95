"""A suffix array of token ids: where every suffix begins, in the order of the suffixes (Manber and Myers 1990).

The array is made by doubling in numpy; the search is compiled where the extension is there, and `Plain` does the same.
-1 ends a document: nothing that is searched or continued crosses it.
Does not: order suffixes by more than their first 64 tokens; patterns are shorter.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.kernels import native
from forerun.kernels.automaton import Guess

Tokens = npt.NDArray[np.int32]
Range = tuple[int, int, int]  # first and last + 1 of the suffixes that begin with a pattern, and its length
LONGEST = 64  # tokens by which suffixes are ordered at least
END = -1  # of a document


def build(tokens: Tokens) -> Tokens:
    """The suffix array, by prefix doubling: ranks by 1, 2, 4, ... tokens."""
    size = len(tokens)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64) + 1
    order, width = np.argsort(rank, kind="stable"), 1
    while width < LONGEST and size > 1:
        behind = np.zeros(size, np.int64)
        behind[: max(size - width, 0)] = rank[width:]
        key = rank * (size + 2) + behind
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank[order] = np.cumsum(np.concatenate([[1], ordered[1:] != ordered[:-1]]))
        width *= 2
    return order.astype(np.int32)


class Search:
    """Finds continuations of token sequences in a text and its suffix array, compiled or plain."""

    def __init__(self, tokens: Tokens, suffixes: Tokens) -> None:
        self.tokens, self.suffixes = tokens, suffixes
        self._native: Any = native.load()

    def longest(self, pattern: Sequence[int], least: int) -> Range:
        """Suffixes that begin with the longest suffix of the pattern that occurs; an empty range below `least`."""
        found: Range = self._native.longest(self.tokens, self.suffixes, pattern, least)
        return found

    def prefixes(self, found: Range, depth: int, most: int, budget: int, least: float) -> Guess:
        """The most frequent continuations of up to `most` evenly chosen suffixes of the range, as a tree."""
        guess: Guess = self._native.prefixes(self.tokens, self.suffixes, found, depth, most, budget, least)
        return guess


class Plain(Search):
    """The reference."""

    def longest(self, pattern: Sequence[int], least: int) -> Range:
        for length in range(len(pattern), max(least, 1) - 1, -1):
            wanted = tuple(pattern[len(pattern) - length :])

            def head(place: int, length: int = length) -> tuple[int, ...]:
                begin = self.suffixes[place]
                return tuple(self.tokens[begin : begin + length].tolist())

            places = range(len(self.suffixes))
            low, high = bisect_left(places, wanted, key=head), bisect_right(places, wanted, key=head)
            if low < high:
                return low, high, length
        return 0, 0, 0

    def prefixes(self, found: Range, depth: int, most: int, budget: int, least: float) -> Guess:
        low, high, length = found
        count = min(high - low, most)
        begins = [int(self.suffixes[low + i * (high - low) // count]) + length for i in range(count)]
        rows = [self._until_end(begin, depth) for begin in begins]
        tokens, parents, chances, score = list[int](), list[int](), list[float](), 0.0
        waiting, pushed, node, group, level = list[tuple[Any, ...]](), 0, -1, range(count), 0
        while count:
            for size, first, token in _runs(rows, group, level) if level < depth else ():
                if size >= least * count:
                    pushed += 1
                    heapq.heappush(waiting, (-size, pushed, token, range(first, first + size), level, node, len(group)))
            if not waiting or len(tokens) == budget:
                break
            negative, _, token, group, level, parent, whole = heapq.heappop(waiting)
            node, level = len(tokens), level + 1
            tokens.append(token)
            parents.append(parent)
            chances.append(-negative / whole)
            score += -negative / count
        return tuple(tokens), tuple(parents), tuple(chances), score

    def _until_end(self, begin: int, depth: int) -> list[int]:
        """At most `depth` tokens of one document."""
        row: list[int] = self.tokens[begin : begin + depth].tolist()
        return row[: row.index(END)] if END in row else row


def _runs(rows: list[list[int]], group: range, level: int) -> list[tuple[int, int, int]]:
    """Size, first row and token of rows that stand next to each other and go on alike."""
    found: list[tuple[int, int, int]] = []
    for row in group:
        token = rows[row][level] if level < len(rows[row]) else END
        if found and found[-1][2] == token:
            found[-1] = (found[-1][0] + 1, found[-1][1], token)
        else:
            found.append((1, row, token))
    return [run for run in found if run[2] != END]


def search(tokens: Tokens, suffixes: Tokens) -> Search:
    """The compiled one where the extension is there."""
    return Search(tokens, suffixes) if native.load() is not None else Plain(tokens, suffixes)
