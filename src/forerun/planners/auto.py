"""As many nodes as bring the most tokens per second, by what passes cost and what became of earlier drafts.

A pass of n rows takes T(n) seconds, measured when the planner is made and scaled by how the passes go now; drafting
takes a constant and a share per node of the longest draft, fitted as it goes. How often node i of a draft exists and
is accepted is counted per request, with older steps counting less, on top of what all requests say. Then nodes are
taken in falling order of their chances, over all requests, as far as tokens per second rise: a knapsack of equal
weights. Now and then a little more is drafted than pays, because what is never tried is never learnt; less often
where it was in vain.
Does not: know what a drafter thinks of its own nodes; choose between drafters; give a seed the same text twice where
the verifier is not `match`, because measured times differ.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from forerun.errors import ConfigError
from forerun.planners.contract import Planner, Spent
from forerun.types import Context, Draft, Facts, Floats, Setup, Turn

MEMORY = 0.97  # what a step counts for after the next one
PRIOR = 4.0  # steps that the general opinion weighs in a request
FIRST = 0.5  # what is thought of the first node before anything was drafted
EARLY, LATE = 16, 512  # steps between trials: at first, and where they were in vain
TRIED = 2  # nodes more, in a trial
REMEMBERED = 4096  # requests


@dataclass(eq=False)
class Record:
    """What became of the nodes of drafts, by their number: [most] each."""

    most: int
    asked: Floats = field(init=False)
    made: Floats = field(init=False)
    accepted: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.asked, self.made, self.accepted = (np.zeros(self.most) for _ in range(3))

    def learn(self, asked: int, made: int, path: Sequence[int]) -> None:
        """One draft of `made` nodes, for which there was room for `asked`."""
        for counts in (self.asked, self.made, self.accepted):
            np.multiply(counts, MEMORY, out=counts)
        self.asked[:asked] += 1
        self.made[:made] += 1
        self.accepted[list(path)] += 1

    def chances(self, general: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """How often each node is made, and is accepted, where little is known as `general` has it."""
        made, accepted = general
        return (
            (self.made + PRIOR * made) / (self.asked + PRIOR),
            (self.accepted + PRIOR * accepted) / (self.asked + PRIOR),
        )


@dataclass(eq=False)
class Drafting:
    """Seconds of drafting, constant + each x nodes, by least squares over the latest steps."""

    sums: Floats = field(default_factory=lambda: np.zeros(5))  # of 1, n, n^2, s, n s

    def learn(self, nodes: int, seconds: float) -> None:
        self.sums = MEMORY * self.sums + np.array([1, nodes, nodes * nodes, seconds, nodes * seconds])

    def line(self) -> tuple[float, float]:
        """(constant, each), neither below 0; zeros before the first draft."""
        one, n, nn, s, ns = self.sums.tolist()
        if one == 0:
            return 0.0, 0.0
        spread = one * nn - n * n
        each = max((one * ns - n * s) / spread, 0.0) if spread > 1e-9 * one * nn else s / max(n, 1.0)
        return max((s - each * n) / one, 0.0), each


class AutoPlanner(Planner):
    """The budget with the highest expected tokens per second; none where plain decoding is faster."""

    facts = Facts(evidence="docs/results/README.md#planner-auto")

    @dataclass(frozen=True)
    class Options:
        """`most`: nodes of one request in one step."""

        most: int = 16

        def __post_init__(self) -> None:
            if self.most < 1:
                raise ConfigError(f"planner 'auto': most is {self.most}; give at least 1, or planner='fixed:nodes=0'.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.costs = options, setup.costs()
        self.everybody, self.drafting = Record(options.most), Drafting()
        self.requests = OrderedDict[int, Record]()
        self.given = dict[int, int]()  # of the step that is under way
        self.best: tuple[tuple[int, ...], int, list[int]] | None = None  # requests, room, shares; as long as it holds
        self.slow, self.steps, self.pause, self.trial = 1.0, 0, EARLY, EARLY
        self.passes = cache(self._passes)

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        if not batch:
            return []
        self.steps += 1
        ids = tuple(context.id for context in batch)
        if self.best is None or self.best[:2] != (ids, room):
            self.best = ids, room, self._best(batch, room)
        shares = self.best[2]
        if self.steps >= self.trial:
            self.pause = EARLY if any(shares) else min(2 * self.pause, LATE)
            self.trial = self.steps + self.pause
            most = min(self.options.most, room // len(batch))
            shares = [max(share, min(share + TRIED, most)) for share in shares]
            if sum(shares) > room:
                shares = self.best[2]
        self.given = dict(zip(ids, shares, strict=True))
        return list(shares)

    def _best(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes in falling order of their chances, as far as tokens per second rise."""
        general = self._general()
        made, accepted = zip(*(self._record(context.id).chances(general) for context in batch), strict=True)
        chances = np.minimum.accumulate(np.array(accepted), axis=1)  # a node is not worth more than those before it
        order = np.argsort(-chances, axis=None, kind="stable")[:room]
        longest = np.maximum.accumulate(order % self.options.most + 1)
        constant, each = self.drafting.line()
        rows = np.concatenate(([0.0], np.cumsum(np.array(made).ravel()[order])))
        seconds = self.slow * np.interp(rows, np.arange(len(order) + 1), self.passes(len(batch), len(order)))
        seconds[1:] += constant + each * longest
        tokens = len(batch) + np.concatenate(([0.0], np.cumsum(chances.ravel()[order])))
        count = int((tokens / seconds).argmax())
        shares: list[int] = np.bincount(order[:count] // self.options.most, minlength=len(batch)).tolist()
        return shares

    def _passes(self, rows: int, more: int) -> Floats:
        """Seconds of passes of `rows` and up to `more` rows more."""
        return np.array([self.costs.of(rows + extra) for extra in range(more + 1)])

    def _general(self) -> tuple[Floats, Floats]:
        """What all requests say: a node of which nobody knows anything follows as the first one did."""
        made, accepted, record = np.ones(self.options.most), np.empty(self.options.most), self.everybody
        chance, first = 1.0, FIRST
        for i in range(self.options.most):
            chance = (record.accepted[i] + first * chance) / (record.asked[i] + 1)
            first = chance if i == 0 else first
            accepted[i] = chance
            made[i] = (record.made[i] + 1) / (record.asked[i] + 1)
        return made, accepted

    def _record(self, request: int) -> Record:
        record = self.requests.get(request)
        if record is None:
            record = self.requests[request] = Record(self.options.most)
            if len(self.requests) > REMEMBERED:
                self.requests.popitem(last=False)
        return record

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        self.slow += (1 - MEMORY) * (spent.running / self.costs.of(spent.rows) - self.slow)
        longest = 0
        for context, draft, turn in zip(batch, drafts, turns, strict=True):
            asked = self.given.get(context.id, 0)
            if asked == 0:
                continue
            pending = len(turn.keep) + 1 - len(turn.emissions)
            path = [row - pending for row in turn.keep[pending:]]
            for record in (self.everybody, self._record(context.id)):
                record.learn(asked, len(draft), path)
            longest, self.best = max(longest, len(draft)), None
        if longest:
            self.drafting.learn(longest, spent.drafting)
