"""A tri-gram matrix that follows the target's distributions, searched as a tree of moves: ADED (2407.12021).

For two tokens in a row the matrix holds the likeliest next ones with the probabilities that the target gave them when
it last read these two, at accepted and at rejected nodes; what a prompt has is there until the target says better.
Where the two are new, what was last said after the second of them stands in for the paper's matrix of a corpus. A draft
grows by one node per simulation: from the root to the child of the highest Q + c P sqrt(N) / (1 + n), where P is the
matrix's probability, n and N the visits of child and parent, and Q the mean chance that what was found below the child
is reached from the parent.
Of what was written in steps in which nobody asked for a draft only the tokens are kept, as those of the prompt are.
Does not: begin with a corpus; draw at random, so the nodes are chosen tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.pool import Pool
from forerun.drafting.top import likeliest
from forerun.host import fetch
from forerun.types import Context, Draft, Facts, Need, Outcome, Output, Setup

NONE = -1  # in place of a token
SEEN = 0.5  # the probability of what followed in the prompt

Pair = tuple[int, int]
Row = Sequence[tuple[int, float]]  # (token, probability), the likeliest first


class Matrix:
    """The rows of the last pairs that were read."""

    def __init__(self, most: int) -> None:
        self.rows: dict[Pair, Row] = {}
        self._most = most

    def read(self, pair: Pair) -> Row:
        """The row of a pair, or of its second token."""
        return self.rows.get(pair) or self.rows.get((NONE, pair[1]), ())

    def hint(self, pair: Pair, row: Row) -> None:
        """A row for what has none."""
        for key in (pair, (NONE, pair[1])):
            self.rows.setdefault(key, row)
        self._forget()

    def write(self, pair: Pair, row: Row) -> None:
        """The newest row of a pair and of its second token; those that were written longest ago make room."""
        for key in (pair, (NONE, pair[1])):
            self.rows.pop(key, None)
            self.rows[key] = row
        self._forget()

    def _forget(self) -> None:
        while len(self.rows) > self._most:
            del self.rows[next(iter(self.rows))]


@dataclass(eq=False, slots=True)
class _State:
    matrix: Matrix
    known: int = 0  # tokens of the text of which the matrix knows what led to them
    asked: bool = False  # for a draft, in this step


@dataclass(eq=False, slots=True)
class _Node:
    """A place of the search."""

    number: int  # of the draft; -1 is the root
    pair: Pair
    chance: float  # of being reached from the root
    left: Row  # of its row, what is not a child yet
    prior: float = 1.0  # from its parent
    visits: int = 1
    worth: float = 0.0  # sum over simulations: the chance that what they added is reached from the parent
    children: "list[_Node]" = field(default_factory=list)
    done: bool = False  # nothing can be added below

    def score(self, explore: float) -> float:
        """Of going here from a parent, but for the parent's visits."""
        return self.worth / self.visits + explore * self.prior / (1 + self.visits)


class AdedDrafter(SoloDrafter):
    """Tri-grams of the target, explored and exploited."""

    facts = Facts(
        keys=("aded",),
        paper="2407.12021",
        needs=frozenset({Need.LOGITS, Need.BRANCHING}),
        learns=True,
        lesson=6,
        evidence="docs/results/README.md#drafts",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`nodes` of a draft, `width` tokens of a row; `explore`: c, the weight of what was visited seldom.

        `pairs`: rows that are kept; `shared`: one matrix for all requests of a scope.
        """

        nodes: int = 32
        width: int = 8
        explore: float = 1.0
        pairs: int = 100_000
        shared: bool = True

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.width = options, min(options.width, setup.vocab)
        self.pool = Pool(lambda: Matrix(options.pairs), shared=options.shared)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(nodes=4, width=2)

    def start(self, context: Context) -> _State:
        return _State(self.pool.of(context))

    def stop(self, context: Context) -> None:
        _read(context.state, context.tokens)

    def propose_one(self, context: Context, budget: int) -> Draft:
        _read(context.state, context.tokens)
        matrix, tokens, parents, priors = context.state.matrix, list[int](), list[int](), list[float]()
        pair, context.state.asked = _pair(context.tokens), True
        root = _Node(-1, pair, 1.0, matrix.read(pair))
        while len(tokens) < min(budget, self.options.nodes) and not root.done:
            path = self._walk(root)
            leaf = path[-1]
            if not leaf.left:
                _close(path)
                continue
            (token, prior), leaf.left = leaf.left[0], leaf.left[1:]
            below = leaf.pair[1], token
            child = _Node(len(tokens), below, leaf.chance * prior, matrix.read(below), prior, 0)
            leaf.children.append(child)
            tokens.append(token)
            parents.append(leaf.number)
            priors.append(prior)
            _tell([*path, child])
        return Draft(tuple(tokens), tuple(parents), None, tuple(priors), "aded")

    def _walk(self, node: _Node) -> list[_Node]:
        """From the root to the node that gets a child, or that can have none."""
        path = [node]
        while True:
            reach = self.options.explore * sqrt(node.visits)
            best = max((c for c in node.children if not c.done), key=lambda c: c.score(reach), default=None)
            if best is None or (node.left and reach * node.left[0][1] >= best.score(reach)):
                return path
            node = best
            path.append(node)

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            draft, verdict, state = outcome.draft, outcome.verdict, context.state
            if draft is None or verdict is None or not state.asked:
                continue
            before = [context.tokens[-1] if above < 0 else draft.tokens[above] for above in draft.parents]
            pairs = [_pair(context.tokens), *zip(before, draft.tokens, strict=True)]
            for pair, row in zip(pairs, self._rows(outcome.output), strict=True):
                state.matrix.write(pair, row)
            state.asked, state.known = False, len(context.tokens) + len(verdict.path) + 1

    def _rows(self, output: Output) -> list[Row]:
        """The likeliest tokens of every row of logits."""
        values, tokens = map(fetch, likeliest(output.logits, self.width))
        peaks = values[:, :1]
        mass = np.exp(fetch(output.logits) - peaks).sum(-1) if output.mass is None else np.array(output.mass)
        chances = np.exp(values - peaks) / mass[:, None]
        return [tuple(zip(*pair, strict=True)) for pair in zip(tokens.tolist(), chances.tolist(), strict=True)]


def _read(state: _State, tokens: Sequence[int]) -> None:
    """What followed where nobody looked at the target's rows; what came last counts."""
    for place in range(len(tokens) - 1, max(state.known, 2) - 1, -1):
        state.matrix.hint((tokens[place - 2], tokens[place - 1]), ((tokens[place], SEEN),))
    state.known = len(tokens)


def _pair(tokens: Sequence[int]) -> Pair:
    return (tokens[-2] if len(tokens) > 1 else NONE), tokens[-1]


def _close(path: Sequence[_Node]) -> None:
    """Nothing can be added below the path's end, nor then where all below is closed."""
    for node in reversed(path):
        node.done = not node.left and all(child.done for child in node.children)


def _tell(path: Sequence[_Node]) -> None:
    """The chance of what was added, to all above it."""
    for above, node in zip([path[0], *path], path, strict=False):
        node.visits += 1
        node.worth += path[-1].chance / above.chance if above.chance > 0 else 0.0
