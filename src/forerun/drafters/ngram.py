"""Copy what followed an earlier occurrence of the longest matching suffix (prompt lookup, Saxena 2023).

Looks at the request's own prompt and output; the latest occurrence of the longest suffix wins. An index from every
n-gram to its last end makes a proposal O(max_match), whatever the length of the text.
Does not: look beyond this request's own tokens; propose more than one branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


class _Index:
    """Last end of every n-gram, for all n from min_match to max_match; the text's own end is not yet in it."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self.known = 0  # tokens indexed so far


class NgramDrafter(SoloDrafter):
    """Longest-suffix prompt lookup."""

    facts = Facts(paper="Saxena 2023, prompt lookup decoding", ahead=True, evidence="docs/results/README.md#speed")

    @dataclass(frozen=True)
    class Options:
        """`width` tokens are copied after a match of min_match to max_match tokens."""

        width: int = 8
        min_match: int = 2
        max_match: int = 4

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(width=2, min_match=1, max_match=2)

    def start(self, context: Context) -> _Index:
        return _Index()

    def propose_one(self, context: Context, budget: int) -> Draft:
        tokens, index = context.tokens, context.state
        self._extend(index, tokens)
        room = min(budget, self.options.width)
        suffix = (*tokens[-self.options.max_match :], *context.ahead)
        for n in range(min(self.options.max_match, len(suffix)), self.options.min_match - 1, -1):
            end = index.ends.get(suffix[-n:])
            if end is not None:
                copied = tuple(tokens[end : end + room])
                sure = (n / (self.options.max_match + 1),) * len(copied)  # the longer the match
                return Draft(copied, tuple(range(-1, len(copied) - 1)), None, sure, "ngram")
        return _NOTHING

    def _extend(self, index: _Index, tokens: Sequence[int]) -> None:
        """Index every n-gram that ends before the last token: only those have a continuation."""
        for end in range(max(index.known, 1), len(tokens)):
            for n in range(self.options.min_match, min(self.options.max_match, end) + 1):
                index.ends[tuple(tokens[end - n : end])] = end
        index.known = max(len(tokens), 1)
