"""Continue as a datastore of texts does where the target's hidden state was most similar (DReSD, 2502.15572).

A pass leaves the state that the last committed token was drawn from. The nearest states of the datastore are places in
its texts where the target stood alike; those that went on with that very token vote for what comes behind it, and the
most frequent prefixes of their continuations are the draft.
Does not: learn; look at the request's own text (`several:of=[(dresd:store=FILE),ngram]` looks at both).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forerun.drafters.contract import Drafter
from forerun.host import fetch
from forerun.kernels.suffixes import END, search
from forerun.stores.dense import LAYER, open_dense
from forerun.types import Context, Draft, Facts, Ints, Need, Outcome, Setup

_NOTHING = Draft()


@dataclass(eq=False, slots=True)
class _Stand:
    """What the target made of the last token that it read, [hidden]."""

    state: torch.Tensor | None = None


class DresdDrafter(Drafter):
    """Retrieval from a file made by `forerun datastore build --dense`."""

    facts = Facts(
        keys=("dresd",),
        paper="2502.15572",
        needs=frozenset({Need.DATASTORE, Need.HIDDEN_STATES, Need.BRANCHING}),
        evidence="docs/results/README.md#retrieval",
    )
    hidden = (LAYER,)

    @dataclass(frozen=True)
    class Options:
        """`store`: the file; of the `matches` nearest states `depth` tokens each.

        The draft has at most `nodes`, each of at least the share `least` of those that went on with the last token.
        """

        store: str = ""
        matches: int = 64
        depth: int = 10
        nodes: int = 64
        least: float = 0.02

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.store = open_dense(options.store, setup, "drafter 'dresd'")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(store="toy:0", matches=8, nodes=3, depth=2)

    def start(self, context: Context) -> _Stand:
        return _Stand()

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        drafts = [_NOTHING] * len(batch)
        states = {i: context.state.state for i, context in enumerate(batch) if context.state.state is not None}
        if states:
            near = self.store.near(fetch(torch.stack(list(states.values())).float()), self.options.matches)
            for i, places in zip(states, near, strict=True):
                drafts[i] = self._voted(places, batch[i].tokens[-1], budgets[i])
        return drafts

    def _voted(self, places: Ints, last: int, budget: int) -> Draft:
        """What came behind these places and the last token."""
        o, tokens = self.options, self.store.tokens
        begins = places[tokens[np.minimum(places + 1, len(tokens) - 1)] == last] + 2
        if not len(begins):
            return _NOTHING
        texts = np.full((len(begins), o.depth + 1), END, np.int32)
        texts[:, :-1] = tokens[np.minimum(begins[:, None] + np.arange(o.depth), len(tokens) - 1)]
        starts = np.zeros(texts.size, np.int32)
        starts[: len(texts)] = np.lexsort(texts.T[::-1]) * texts.shape[1]
        every, most = (0, len(texts), 0), min(budget, o.nodes)
        found = search(texts.ravel(), starts).prefixes(every, o.depth, o.matches, most, o.least)
        return Draft(found[0], found[1], None, found[2], "dresd")

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            if outcome.verdict is not None:
                row = len(outcome.work.tokens) - len(outcome.draft or ()) - 1
                row += 1 + outcome.verdict.path[-1] if outcome.verdict.path else 0
                context.state.state = outcome.output.hidden[LAYER][row]
