"""The target's own candidates of earlier steps, kept per token, are its next draft (2408.08696).

A matrix holds, for every token, the likeliest tokens after it when the target last read it: at accepted and at rejected
nodes. A draft is the tree that begins with the last token and has these candidates below every node. Its shape is
fixed: node after node the one of most worth, where the candidate of rank r (from 0) is worth 0.6 / (r + 1)^1.2 of what
it hangs under, which is its confidence, too. The first 80 have 8, 21, 25, 18, 6, 1 and 1 nodes on their levels; the
paper's tree, found by hand, has 8, 21, 25, 15, 8 and 3. Nodes without candidates leave theirs to the next in order.
Of what was written in steps in which nobody asked for a draft only the tokens are kept, each first among what follows
the one before it; they are read before the next draft, and when the request ends.
Does not: look at more than one token of context; learn from a prompt, of which only the last row has logits.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.pool import Pool
from forerun.drafting.top import likeliest
from forerun.host import fetch
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

HIT, FALL = 0.6, 1.2
SPARE = 4  # times as many places as nodes, for where candidates are missing

_NOTHING = Draft()
Matrix = npt.NDArray[np.int32]  # [vocab, width], the likeliest first; token + 1, so that untouched memory says none


@dataclass(eq=False, slots=True)
class _State:
    matrix: Matrix
    known: int  # tokens of the text of which the matrix knows what followed
    asked: bool = False  # for a draft, in this step


class TokenRecyclingDrafter(SoloDrafter):
    """An adjacency matrix of tokens, and a static tree over it."""

    facts = Facts(
        keys=("token-recycling",),
        paper="2408.08696",
        needs=frozenset({Need.LOGITS, Need.BRANCHING}),
        learns=True,
        lesson=6,
        evidence="docs/results/README.md#recycling-80",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`nodes` of a draft, `width` candidates per token; `shared`: one matrix for a scope."""

        nodes: int = 80
        width: int = 8
        shared: bool = True

    def __init__(self, options: Options, setup: Setup) -> None:
        self.nodes, self.width = options.nodes, min(options.width, setup.vocab)
        self.places = template(SPARE * options.nodes, self.width)
        self.chances = [HIT / (rank + 1) ** FALL for rank in range(self.width)]
        self.pool: Pool[Matrix] = Pool(lambda: np.zeros((setup.vocab, self.width), np.int32), shared=options.shared)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(nodes=4, width=2)

    def start(self, context: Context) -> _State:
        return _State(self.pool.of(context), len(context.tokens) - 1)

    def stop(self, context: Context) -> None:
        _read(context.state, context.tokens)

    def propose_one(self, context: Context, budget: int) -> Draft:
        matrix, most = context.state.matrix, min(budget, self.nodes)
        _read(context.state, context.tokens)
        context.state.asked = True
        tokens, parents, chances = list[int](), list[int](), list[float]()
        rows, nodes = [matrix[context.tokens[-1]].tolist()], [-1]  # by place, the root first
        if not rows[0][0]:
            return _NOTHING
        for place, rank in self.places:
            if len(tokens) == most:
                break
            row = rows[place + 1]
            if not row or not row[rank]:
                rows.append(row[:0])
                nodes.append(-1)
                continue
            nodes.append(len(tokens))
            tokens.append(row[rank] - 1)
            parents.append(nodes[place + 1])
            chances.append(self.chances[rank])
            rows.append(matrix[tokens[-1]].tolist())
        return Draft(tuple(tokens), tuple(parents), None, tuple(chances), "token-recycling")

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            state, verdict = context.state, outcome.verdict
            if not state.asked or verdict is None:
                continue
            read = [outcome.work.tokens[row] for row in outcome.work.logits]
            _, best = likeliest(outcome.output.logits, self.width)
            state.matrix[read] = fetch(best) + 1  # of a token that was read twice, the last
            state.asked, state.known = False, len(context.tokens) + len(verdict.path)


def _read(state: _State, tokens: Sequence[int]) -> None:
    """Tokens whose rows nobody looked at: what followed each goes before all others, the least likely of which goes."""
    new = tokens[state.known :]
    for token, following in dict(pairwise(new)).items():
        row = state.matrix[token]
        if row[0] != following + 1:
            others = [other for other in row.tolist() if other != following + 1]
            row[:] = [following + 1, *others][: len(row)]
    state.known = max(len(tokens) - 1, 0)


def template(count: int, width: int) -> list[tuple[int, int]]:
    """(place above, rank) of the `count` best places, best first; -1 is the root."""
    places: list[tuple[int, int]] = []
    heap = [(-HIT, -1, 0)]
    while len(places) < count:
        worth, above, rank = heapq.heappop(heap)
        heapq.heappush(heap, (worth * HIT, len(places), 0))
        if rank + 1 < width:
            heapq.heappush(heap, (worth * ((rank + 1) / (rank + 2)) ** FALL, above, rank + 1))
        places.append((above, rank))
    return places
