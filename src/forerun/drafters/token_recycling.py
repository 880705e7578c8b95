"""The target's own candidates of earlier steps, kept per token, are its next draft (2408.08696).

A matrix holds, for every token, the likeliest tokens after it when the target last read it: at accepted and at rejected
nodes. A draft is the tree that begins with the last token and has these candidates below every node. Its shape is
fixed: node after node the one of most worth, where the candidate of rank r (from 0) is worth 0.6 / (r + 1)^1.2 of what
it hangs under, which is its confidence, too. The first 80 have 8, 21, 25, 18, 6, 1 and 1 nodes on their levels; the
paper's tree, found by hand, has 8, 21, 25, 15, 8 and 3. Nodes without candidates leave theirs to the next in order.
In a step in which nobody asked for a draft only the likeliest token is kept, which is known without looking for it.
Does not: look at more than one token of context; learn from a prompt, of which only the last row has logits.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

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
        return _State(self.pool.of(context))

    def propose_one(self, context: Context, budget: int) -> Draft:
        matrix, most = context.state.matrix, min(budget, self.nodes)
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
            if not outcome.work.logits:
                continue
            matrix, read = context.state.matrix, [outcome.work.tokens[row] for row in outcome.work.logits]
            if context.state.asked:
                _, best = likeliest(outcome.output.logits, self.width)
                matrix[read] = fetch(best) + 1  # of a token that was read twice, the last
                context.state.asked = False
            else:
                _to_front(matrix[read[0]], outcome.output.best[0] + 1)


def _to_front(row: Matrix, token: int) -> None:
    """Before all others in a matrix's row, the least likely of which goes."""
    others = [other for other in row.tolist() if other != token]
    row[:] = [token, *others][: len(row)]


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
