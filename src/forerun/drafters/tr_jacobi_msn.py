"""Tree-shaped, retrieval-augmented Jacobi decoding, for targets trained on noise (TR-Jacobi, 2406.17404).

What the target said behind the guesses of the last pass gives several candidates per position: a sparse tree of them is
judged, the likeliest in a row and others beside these. Where guesses end, noise follows, so that the next pass says
something of further positions; it is what followed the same token earlier in the text, if that is there. What followed
the text's own ending earlier in the text is one branch more. `forerun train consistency --noise` trains targets that
guess well behind noise.
Does not: look beyond this request's own tokens; draw candidates, so a sampled one is accepted with its probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush

import torch

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.ahead import filler, speakers
from forerun.drafting.purse import Purse
from forerun.drafting.top import likeliest
from forerun.drafting.trie import ROOT, Trie
from forerun.errors import ConfigError
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

COPIED, GUESS, BESIDE, NOISE = 0.6, 0.2, 0.1, 0.02  # confidence, by what a node is
_NOTHING = Draft()
_STEP = 0.5  # what a level costs in the order of the tree's paths, where a rank costs 1


@lru_cache(maxsize=64)
def template(depth: int, width: int, leaves: int) -> tuple[tuple[int, ...], ...]:
    """The first `leaves` paths of ranks, by the sum of their ranks and of a constant per level."""
    found = list[tuple[int, ...]]()
    heap: list[tuple[float, tuple[int, ...]]] = [(rank + _STEP, (rank,)) for rank in range(width)]
    while heap and len(found) < leaves:
        cost, path = heappop(heap)
        found.append(path)
        if len(path) < depth:
            for rank in range(width):
                heappush(heap, (cost + rank + _STEP, (*path, rank)))
    return tuple(found)


@dataclass(eq=False, slots=True)
class _State:
    purse: Purse
    candidates: list[list[int]] = field(default_factory=list)  # of the positions from `begin` on, the likeliest first
    begin: int = 0
    places: dict[tuple[int, ...], int] = field(default_factory=dict)  # where the text's n-grams last ended
    known: int = 0  # tokens of the text in `places`


class TrJacobiDrafter(SoloDrafter):
    """Jacobi guesses as a tree, with a branch from the text."""

    facts = Facts(
        keys=("tr-jacobi-msn",),
        paper="2406.17404",
        needs=frozenset({Need.LOGITS, Need.BRANCHING}),
        evidence="docs/results/README.md#parallel-greedy",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`noise`: guesses and noise in a row; `width`: candidates of a position; `leaves`: paths of the tree.

        `copy`: tokens taken from the text after a match of at most `match`.
        `price`: steps that a node costs, 0.03 or more on a CPU; 0: never rest.
        """

        noise: int = 4
        width: int = 3
        leaves: int = 6
        copy: int = 6
        match: int = 3
        price: float = 0.01

        def __post_init__(self) -> None:
            if min(self.noise, self.width, self.match) < 1 or min(self.leaves, self.copy) < 0 or not self.price >= 0:
                told = f"noise is {self.noise}, width {self.width} and match {self.match}"
                raise ConfigError(f"drafter 'tr-jacobi-msn': {told}; give at least 1, and the others of at least 0.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(noise=2, width=2, leaves=3, copy=2, match=2)

    def start(self, context: Context) -> _State:
        return _State(Purse(self.options.price))

    def propose_one(self, context: Context, budget: int) -> Draft:
        state: _State = context.state
        tokens, options = context.tokens, self.options
        if state.purse.rests():
            return _NOTHING
        self._read(state, tokens)
        trie, candidates = Trie(budget), state.candidates[: options.noise] if state.begin == len(tokens) else []
        row = [ranked[0] for ranked in candidates]
        trie.add(self._copied(state, tokens), ROOT, COPIED)
        trie.add(row, ROOT, GUESS)
        trie.add([*row, *self._noise(state, tokens, row)], ROOT, NOISE)
        if candidates:
            for path in template(len(candidates), options.width, options.leaves):
                trie.add([ranked[rank] for ranked, rank in zip(candidates, path, strict=False)], ROOT, BESIDE)
        return state.purse.pay(trie.draft("tr-jacobi-msn"))

    def _read(self, state: _State, tokens: Sequence[int]) -> None:
        """Where the n-grams of the text end; its own end has no continuation yet."""
        for end in range(max(state.known, 1), len(tokens)):
            for span in range(1, min(self.options.match, end) + 1):
                state.places[tuple(tokens[end - span : end])] = end
        state.known = max(len(tokens), 1)

    def _copied(self, state: _State, tokens: Sequence[int]) -> Sequence[int]:
        """What followed the longest ending of the text that was there before."""
        for span in range(min(self.options.match, len(tokens)), 0, -1):
            end = state.places.get(tuple(tokens[-span:]))
            if end is not None:
                return tokens[end : end + self.options.copy]
        return ()

    def _noise(self, state: _State, tokens: Sequence[int], row: Sequence[int]) -> Sequence[int]:
        """Tokens for the positions behind the guesses."""
        count, last = self.options.noise - len(row), row[-1] if row else tokens[-1]
        end = state.places.get((last,))
        found = list(tokens[end : end + count]) if end is not None else []
        return [*found, *filler(tokens, count - len(found))]

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            state = context.state
            state.purse.settle(outcome)
            if outcome.draft is None or outcome.verdict is None:
                continue
            path = outcome.verdict.path
            nodes, state.begin = speakers(outcome.draft, path), len(context.tokens) + len(path) + 1
            state.candidates = self._ranked(outcome.output.logits, nodes) if nodes else []

    def _ranked(self, logits: torch.Tensor, nodes: Sequence[int]) -> list[list[int]]:
        """The likeliest tokens behind every node."""
        _, tokens = likeliest(logits[[node + 1 for node in nodes]], min(self.options.width, logits.shape[-1]))
        ranked: list[list[int]] = tokens.tolist()
        return ranked
