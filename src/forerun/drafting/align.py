"""Follow a text that the output repeats with changes: where in it the output stands, and what would come next.

After a mismatch a token is taken for a replacement, so that the next one is expected right behind it, until so many
in a row were wrong. The last `match` tokens, where they stand in the source, lead back to it: first ahead of where the
output left it, so that repeated lines are found in their order, then behind. Nothing is searched: an index of n-grams
makes a step O(match).
Does not: know what is a better alignment in hindsight; it never goes back over tokens that are written.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


class Source:
    """A text, and after which n-grams its tokens come."""

    def __init__(self, tokens: Sequence[int], match: int) -> None:
        self.tokens, self.match = tuple(tokens), match
        self._places: dict[tuple[int, ...], list[int]] = {}
        for place in range(match, len(tokens)):
            self._places.setdefault(self.tokens[place - match : place], []).append(place)

    def behind(self, gram: tuple[int, ...], at: int) -> int | None:
        """The first place from `at` on that comes right behind the n-gram, else the last one before."""
        places = self._places.get(gram)
        if places is None:
            return None
        return places[min(bisect_left(places, at), len(places) - 1)]


@dataclass(eq=False, slots=True)
class Follower:
    """Where a text stands in its source."""

    source: Source
    seen: int  # tokens of the text that were read
    at: int = 0  # the place in the source that is expected next
    wrong: int = 0  # tokens in a row that were not the expected ones

    def read(self, text: Sequence[int]) -> None:
        """Follow the text's new tokens."""
        source, match = self.source.tokens, self.source.match
        for end in range(self.seen + 1, len(text) + 1):
            if self.at < len(source) and source[self.at] == text[end - 1]:
                self.at, self.wrong = self.at + 1, 0
                continue
            left = self.at - self.wrong  # where the source was left; what was taken for replaced may not be
            place = self.source.behind(tuple(text[max(end - match, 0) : end]), left)
            self.at, self.wrong = (self.at + 1, self.wrong + 1) if place is None else (place, 0)
        self.seen = len(text)

    def expected(self, count: int) -> tuple[int, ...]:
        """The next tokens of the source, as many as there are."""
        return self.source.tokens[self.at : self.at + count]
