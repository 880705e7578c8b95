"""Continue the longest earlier occurrence of what was just written: here, or in a corpus (SAM-Decoding, 2411.10666).

One suffix automaton holds a corpus, another one the request's own text, and both know the longest suffix that they hold
at O(1) amortised per token. The own text is preferred unless the corpus matches by more than `bias` tokens more.
Matches shorter than `shortest` are left to another drafter, where one is named.
Does not: branch; learn from other requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun.corpus import open_corpus
from forerun.drafters.contract import Drafter
from forerun.kernels.automaton import ROOT, START, Automaton, Match, automaton
from forerun.kernels.suffixes import END
from forerun.types import Context, Draft, Facts, Outcome, Setup

_NOTHING = Draft()
REACH = 64  # tokens of a prompt that are matched against the corpus


@dataclass(eq=False)
class _Text:
    """One request's own automaton, its place in the corpus, and what the other drafter sees of it."""

    own: Automaton
    other: Context | None
    end: int = ROOT
    known: int = 0
    match: Match = START


class SamDecodingDrafter(Drafter):
    """Longest match in two suffix automata."""

    facts = Facts(keys=("sam-decoding",), paper="2411.10666", draws=True, evidence="docs/results/README.md#hybrids")

    @dataclass(frozen=True)
    class Options:
        """`width` tokens after a match; `corpus`: a datastore's file; `of`: who drafts after shorter matches, spelled.

        The authors hand over below 5 tokens (`shortest=5`), to `token-recycling` or a trained drafter.
        """

        width: int = 16
        shortest: int = 2
        bias: int = 5
        corpus: str = ""
        of: str = ""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.corpus = options, automaton()
        if options.corpus:
            tokens = open_corpus(options.corpus, setup, "drafter 'sam-decoding'").tokens
            for document in np.split(tokens, np.flatnonzero(tokens == END) + 1):
                self.corpus.extend(ROOT, document[:-1].tolist())
        self.other: Drafter | None = setup.open_drafter(options.of, setup) if options.of else None
        self.hidden = self.other.hidden if self.other is not None else ()

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(width=2, shortest=2, bias=0, corpus="toy:0", of="draft-model:model=toy:100,depth=2")

    def start(self, context: Context) -> _Text:
        other = replace(context, state=self.other.start(context)) if self.other is not None else None
        return _Text(automaton(), other)

    def pause(self, context: Context) -> None:
        if self.other is not None:
            self.other.pause(context.state.other)

    def resume(self, context: Context) -> None:
        if self.other is not None:
            self.other.resume(context.state.other)

    def stop(self, context: Context) -> None:
        if self.other is not None:
            self.other.stop(context.state.other)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        drafts = [self._copied(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        if self.other is not None:
            left = [i for i, draft in enumerate(drafts) if not len(draft)]
            given = self.other.propose([batch[i].state.other for i in left], [budgets[i] for i in left]) if left else []
            for i, draft in zip(left, given, strict=True):
                drafts[i] = draft
        return drafts

    def _copied(self, context: Context, budget: int) -> Draft:
        """What followed the longer match."""
        text, o, tokens = context.state, self.options, context.tokens
        new = tokens[text.known :]
        text.end = text.own.extend(text.end, new)
        text.match = self.corpus.follow(text.match, new if text.known else new[-REACH:])
        text.known = len(tokens)
        here, there = text.own.earlier(text.end), text.match
        latest = here[1] >= there[1] - o.bias
        if (here if latest else there)[1] < o.shortest:
            return _NOTHING
        of, match = (text.own, here) if latest else (self.corpus, there)
        copied, parents, chances, _ = of.chain(match, min(budget, o.width), latest)
        return Draft(copied, parents, None, chances, "sam-decoding")

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        if self.other is not None:
            self.other.observe([context.state.other for context in batch], outcomes)
