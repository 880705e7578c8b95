"""Continue the longest earlier occurrence of what was just written: here, in earlier outputs, or in a corpus.

SAM-Decoding (2411.10666). Suffix automata hold the request's own text, earlier outputs of its scope, and a corpus; each
knows the longest suffix that it holds at O(1) amortised per token. The longest match counts, the own text's before
others as long; a corpus has to match by more than `bias` tokens more. Matches shorter than `shortest` are left to
another drafter, where one is named. With `--draft-store` earlier outputs outlive the engine.
Does not: branch; show one scope what another wrote; learn from a request before it ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from forerun.drafters.contract import Drafter
from forerun.kernels.automaton import ROOT
from forerun.kernels.suffixes import END
from forerun.stores.archive import Archive, Place, Volume, check_room
from forerun.stores.corpus import open_corpus
from forerun.types import Context, Draft, Facts, Outcome, Setup

_NOTHING = Draft()


@dataclass(eq=False)
class _Request:
    """Where one request's text stands, and what the other drafter sees of it."""

    place: Place
    other: Context | None


class SamDecodingDrafter(Drafter):
    """Longest match in suffix automata."""

    facts = Facts(
        keys=("sam-decoding",),
        paper="2411.10666",
        draws=True,
        learns=True,
        evidence="docs/results/README.md#hybrids",
    )

    @dataclass(frozen=True)
    class Options:
        """`width` tokens after a match; `corpus`: a datastore's file; `of`: who drafts after shorter matches, spelled.

        The authors hand over below 5 tokens (`shortest=5`), to `token-recycling` or a trained drafter. `room`: tokens
        of earlier outputs.
        """

        width: int = 16
        shortest: int = 2
        bias: int = 5
        corpus: str = ""
        of: str = ""
        room: int = 1_000_000

        def __post_init__(self) -> None:
            check_room(self.room, "drafter 'sam-decoding'")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.corpus = options, list[Volume]()
        if options.corpus:
            self.corpus.append(Volume())
            tokens = open_corpus(options.corpus, setup, "drafter 'sam-decoding'").tokens
            for document in np.split(tokens, np.flatnonzero(tokens == END) + 1):
                self.corpus[0].automaton.extend(ROOT, document[:-1].tolist())
        self.archive = Archive(options.room, setup.store)
        self.other: Drafter | None = setup.open_drafter(options.of, setup) if options.of else None
        self.hidden = self.other.hidden if self.other is not None else ()

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(width=2, shortest=2, bias=0, corpus="toy:0", of="draft-model:model=toy:100,depth=2")

    @property
    def listens(self) -> bool:
        return self.other is not None

    @property
    def watches(self) -> bool:
        return self.other is not None and self.other.watches

    def start(self, context: Context) -> _Request:
        other = replace(context, state=self.other.start(context)) if self.other is not None else None
        return _Request(Place(), other)

    def pause(self, context: Context) -> None:
        if self.other is not None:
            self.other.pause(context.state.other)

    def resume(self, context: Context) -> None:
        if self.other is not None:
            self.other.resume(context.state.other)

    def stop(self, context: Context) -> None:
        self.archive.learn(context)
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
        place, o = context.state.place, self.options
        place.read(context.tokens, [*self.archive.of(context.scope), *self.corpus])
        here = place.own.earlier(place.end)
        longer = [(match[1] - o.bias * (volume in self.corpus), volume) for volume, match in place.matches.items()]
        length, volume = max(longer, key=itemgetter(0), default=(0, None))
        of, match = place.own, here
        if volume is not None and length > here[1]:
            of, match = volume.automaton, place.matches[volume]
            self.archive.use(volume)
        if match[1] < o.shortest:
            return _NOTHING
        latest = of is place.own
        copied, parents, chances, _ = of.chain(match, min(budget, o.width), latest)
        return Draft(copied, parents, None, chances, "sam-decoding")

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        if self.other is not None:
            self.other.observe([context.state.other for context in batch], outcomes)
