"""As many nodes as bring the most tokens per second, by what passes cost and what became of earlier drafts.

A pass of n rows takes T(n) seconds, measured when there is a first draft and scaled by how the passes go now; drafting
takes a constant and a share per node of the longest draft, fitted as it goes. How often a node is accepted if its
parent is, is counted by who guessed it, how deep and with which confidence; so a draft that was made is cut to the
nodes that pay, over all requests. How many nodes are worth drafting is what earlier drafts of the request, and of all,
have been worth by that measure. Both times nodes are taken in falling order of their chances, as far as tokens per
second rise: a knapsack of equal weights. What is never tried is never learnt, so a little more than pays is drafted
and verified now and then, unless drafts have cost more than they brought by a share of all the time.
Does not: choose between drafters; give a seed the same text twice where the verifier is not coupled, because measured
times differ.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import sqrt

import numpy as np

from forerun.errors import ConfigError
from forerun.planners.contract import Memory, Planner, Spent, reach
from forerun.types import Context, Costs, Draft, Facts, Floats, Setup, Turn

MEMORY = 0.97  # what a step counts for after the next one
STALE = 0.3  # what all counts for, at least, after a time without news
PRIOR = 2.0  # observations that an opinion weighs against the more special one
HOPE = 0.8  # what is thought of a node of which nobody says or knows anything
DEPTHS, BINS = 4, 10  # that are counted apart; the last depth holds the deeper ones, bins are of sqrt(confidence)
YOUNG, APART = 24, 4  # drafts after which a request is looked at closely every few steps only, for the time it takes
HELD_UP = 4  # times as long as expected, at most, may a draft have taken
REST = 64  # steps between two looks, at most, while nothing pays
PATIENCE = 8  # steps between trials of a request
TRIED = 2  # nodes more, in a trial
VAIN, LOAN = 0.005, 4.0  # of every step, and steps at first, that drafts may have cost beyond what they brought
REMEMBERED_TOKENS = 32.0  # of a request, by which it is told from others


def faded(steps: int) -> float:
    """What older counts are worth now."""
    return max(MEMORY**steps, STALE)


@dataclass(eq=False, slots=True)
class Count:
    """How often something was seen, and happened, lately."""

    asked: float = 0.0
    happened: float = 0.0
    step: int = 0  # of the latest news

    def learn(self, happened: float, step: int) -> None:
        share, self.step = faded(step - self.step) if step > self.step else 1.0, step
        self.asked, self.happened = share * self.asked + 1, share * self.happened + happened

    def rate(self, opinion: float) -> float:
        """How often it happens; `opinion` where little is known."""
        return (self.happened + PRIOR * opinion) / (self.asked + PRIOR)


class Trust:
    """How often nodes of one source are accepted if their parent is, by depth and confidence."""

    def __init__(self) -> None:
        self.bins = [Count() for _ in range(BINS + 1)]  # the last: no confidence given
        self.cells = [[Count() for _ in range(BINS + 1)] for _ in range(DEPTHS)]

    def chance(self, depth: int, place: int) -> float:
        """Where nothing is known, kinder than the confidence: what is too high is soon found out."""
        guess = (place + 0.5) / BINS if place < BINS else HOPE
        return self.cells[depth][place].rate(self.bins[place].rate(guess))

    def learn(self, depth: int, place: int, accepted: float, step: int) -> None:
        self.bins[place].learn(accepted, step)
        self.cells[depth][place].learn(accepted, step)


@dataclass(frozen=True, slots=True)
class Made:
    """A draft before it was cut."""

    asked: int  # nodes for which there was room
    worth: Sequence[float] = ()
    kept: Sequence[int] = ()
    luck: float = 1.0  # that was counted with


@dataclass(eq=False)
class Record:
    """What drafts of one request, or of all, were worth, by the number of a node in its draft: [most] each."""

    most: int
    worth: list[Count] = field(init=False)  # the chance that it is accepted; 0 where it is not verified
    kept: list[Count] = field(init=False)  # whether it was verified
    expected: float = 2 * PRIOR  # tokens, if this request were like all
    accepted: float = 2 * PRIOR
    drafts: int = 0
    tried: int = 0  # step of the latest trial

    def __post_init__(self) -> None:
        self.worth, self.kept = ([Count() for _ in range(self.most)] for _ in range(2))

    def learn(self, made: Made, accepted: int, step: int) -> None:
        """One draft, of which so many tokens were accepted."""
        self.drafts, kept = self.drafts + 1, set(made.kept)
        for node in range(made.asked):
            self.worth[node].learn(made.worth[node] if node in kept else 0.0, step)
            self.kept[node].learn(node in kept, step)
        self.expected += sum(made.worth[node] for node in made.kept) / made.luck
        self.accepted += accepted
        if self.expected > REMEMBERED_TOKENS:
            self.accepted *= REMEMBERED_TOKENS / self.expected
            self.expected = REMEMBERED_TOKENS

    @property
    def luck(self) -> float:
        """How many tokens were accepted for each that was expected."""
        return self.accepted / self.expected

    def over(self, general: tuple[list[float], list[float]]) -> tuple[list[float], list[float]]:
        """What each node is worth, and how often it is verified; where little is known, as `general` has it."""
        worth, kept = (
            [count.rate(opinion) for count, opinion in zip(counts, opinions, strict=True)]
            for counts, opinions in zip((self.worth, self.kept), general, strict=True)
        )
        return worth, kept

    def hoped(self) -> tuple[list[float], list[float]]:
        """The same of all requests: a node of which nothing is known follows on the one before it."""
        worth, kept, before, there = list[float](), list[float](), 1.0, 1.0
        for worths, keeps in zip(self.worth, self.kept, strict=True):
            before, there = worths.rate(HOPE * before), keeps.rate(there)
            worth.append(before)
            kept.append(there)
        return worth, kept


@dataclass(eq=False)
class Drafting:
    """Seconds of drafting, constant + each x nodes, by least squares over the latest steps."""

    sums: Floats = field(default_factory=lambda: np.zeros(5))  # of 1, n, n^2, s, n s

    def learn(self, nodes: int, seconds: float) -> None:
        if self.known:  # a step that was held up says little
            constant, each = self.line()
            seconds = min(seconds, HELD_UP * (constant + each * nodes))
        self.sums = MEMORY * self.sums + np.array([1, nodes, nodes * nodes, seconds, nodes * seconds])

    @property
    def known(self) -> bool:
        """Whether there was a draft."""
        return bool(self.sums[0])

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

    facts = Facts(clocked=True, evidence="docs/results/README.md#planner-auto")

    @dataclass(frozen=True)
    class Options:
        """`most`: nodes of one request in one step."""

        most: int = 16

        def __post_init__(self) -> None:
            if self.most < 1:
                raise ConfigError(f"planner 'auto': most is {self.most}; give at least 1, or planner='fixed:nodes=0'.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup
        self.everybody, self.drafting, self.trust = Record(options.most), Drafting(), defaultdict[str, Trust](Trust)
        self.requests = Memory(lambda: Record(options.most))
        self.made = dict[int, Made]()  # in the step that is under way
        self.trying = set[int]()  # requests, in this step
        self.close, self.young = True, True  # whether this step is looked at closely; whether some request is new
        self.shares: tuple[tuple[int, ...], int, list[int]] = ((), 0, [])  # requests, room, and what each gets
        self.rest, self.again = APART, 0  # steps between two looks where nothing pays; the step of the next
        self.steps, self.floor = 0, 0.0  # what a node must be worth to be verified
        self.slow, self.vain = 1.0, 0.0  # what passes take beside what they should; steps that drafts have lost
        self.passes = cache(self._passes)

    @cached_property
    def costs(self) -> Costs:
        """Of passes; measured when there is a draft to weigh."""
        return self.setup.costs()

    # before drafting

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        if not batch:
            return []
        self.steps += 1
        ids = tuple([context.id for context in batch])
        self.trying.clear()
        if not any(self.shares[2]) and self.steps < self.again and len(batch) >= len(self.shares[0]):
            self.close = False  # nothing paid a moment ago, with no more requests
            return [0] * len(batch)
        same = self.shares[:2] == (ids, room)
        self.close = not same or self.young or self.steps % APART == 0
        if not self.close:
            return list(self.shares[2])
        if not same or self.steps % APART == 0:
            solvent = self.vain <= LOAN + VAIN * self.steps
            self.shares = ids, room, self._best(batch, room) if solvent else [0] * len(batch)
            self.young = any(self.requests.of(context).drafts < YOUNG for context in batch)
            self.rest = APART if any(self.shares[2]) else min(2 * self.rest, REST)
            self.again = self.steps + self.rest
        shares = self.shares[2]
        if self.trust and self.vain <= VAIN * self.steps:
            shares = self._tried(batch, shares, room)
        self.made = {number: Made(share) for number, share in zip(ids, shares, strict=True) if share}
        return list(shares)

    def _tried(self, batch: Sequence[Context], shares: list[int], room: int) -> list[int]:
        """Some nodes more for requests that had no trial for a while."""
        most, left = min(self.options.most, room // len(batch)), room - sum(shares)
        for i, context in enumerate(batch):
            record = self.requests.of(context)
            more = min(TRIED, most - shares[i], left)
            if self.steps >= record.tried + PATIENCE and more >= 0:
                record.tried, shares, left = self.steps, [*shares[:i], shares[i] + more, *shares[i + 1 :]], left - more
                self.trying.add(context.id)
        return shares

    def _best(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes in falling order of what they are worth, as far as tokens per second rise; one each, at first."""
        most = self.options.most
        if not self.drafting.known:
            return [min(1, room // len(batch))] * len(batch)
        general = self.everybody.hoped()
        worth, kept = zip(*(self.requests.of(context).over(general) for context in batch), strict=True)
        worths = np.minimum.accumulate(np.array(worth), axis=1)  # a node is not worth more than those before it
        order = np.argsort(-worths, axis=None, kind="stable")[:room]
        longest = np.maximum.accumulate(order % most + 1)
        constant, each = self.drafting.line()
        rows = np.concatenate(([0.0], np.cumsum(np.array(kept).ravel()[order])))
        seconds = self.slow * np.interp(rows, np.arange(len(order) + 1), self.passes(len(batch), len(order)))
        seconds[1:] += constant + each * longest
        tokens = len(batch) + np.concatenate(([0.0], np.cumsum(worths.ravel()[order])))
        count = int((tokens / seconds).argmax())
        shares: list[int] = np.bincount(order[:count] // most, minlength=len(batch)).tolist()
        return shares

    def _passes(self, rows: int, more: int) -> Floats:
        """Seconds of passes of `rows` and up to `more` rows more."""
        return np.array([self.costs.of(rows + extra) for extra in range(more + 1)])

    # between drafting and the pass

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """The nodes that pay, over all drafts; some more in a trial."""
        if not any(drafts):
            return drafts
        if not self.close:
            return [self._quickly(context, draft) for context, draft in zip(batch, drafts, strict=True)]
        lucks = [self.requests.of(context).luck for context in batch]
        worths = [self._worth(draft, luck) for draft, luck in zip(drafts, lucks, strict=True)]
        taken = self._paying(worths)
        for i, context in enumerate(batch):
            if context.id in self.trying and len(taken[i]) < min(TRIED, len(drafts[i])):
                order = sorted(range(len(drafts[i])), key=lambda node, i=i: -worths[i][node])  # type: ignore[misc]
                taken[i] = order[:TRIED]
            taken[i].sort()
            self.made[context.id] = Made(self.made[context.id].asked, worths[i], taken[i], lucks[i])
        return [draft.only(nodes) for draft, nodes in zip(drafts, taken, strict=True)]

    def _quickly(self, context: Context, draft: Draft) -> Draft:
        """What is worth as much as a node cost when this was looked at closely."""
        worth = self._worth(draft, self.requests.of(context).luck)
        return draft.only([node for node, value in enumerate(worth) if value >= self.floor])

    def _worth(self, draft: Draft, luck: float) -> list[float]:
        """Of every node, the chance that it is accepted."""
        sources = map(draft.source_of, range(len(draft)))
        chances = [self.trust[source].chance(*cell(draft, node)) for node, source in enumerate(sources)]
        return reach(draft, chances, luck)

    def _paying(self, worths: Sequence[list[float]]) -> list[list[int]]:
        """Per draft, the nodes among the likeliest of all with which tokens per second are highest."""
        order = sorted((-worth, i, node) for i, draft in enumerate(worths) for node, worth in enumerate(draft))
        running = len(self.shares[0])
        constant, each = self.drafting.line()
        spent, passes = constant + each * max(map(len, worths)), self.passes(running, len(order)).tolist()
        tokens, count = float(running), 0
        best = tokens / (spent + self.slow * passes[0])
        for number, (worth, _, _) in enumerate(order, 1):
            tokens -= worth
            rate = tokens / (spent + self.slow * passes[number])
            if rate > best:
                best, count = rate, number
        self.floor = best * self.slow * (passes[max(count, 1)] - passes[0]) / max(count, 1)
        taken: list[list[int]] = [[] for _ in worths]
        for _, i, node in order[:count]:
            taken[i].append(node)
        return taken

    # after the pass

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        if not (self.trust and self.close):
            return
        self.slow += (1 - MEMORY) * (spent.running / self.costs.of(spent.rows) - self.slow)
        longest, first, accepted = 0, False, 0
        for context, draft, turn in zip(batch, drafts, turns, strict=True):
            made = self.made.get(context.id)
            if made is not None:
                accepted += self._learn(self.requests.of(context), made, draft, turn)
                longest, first = max(longest, len(made.worth)), first or self.requests.of(context).drafts == 1
        if longest and not first:  # a request's first draft has its prompt to read
            self.drafting.learn(longest, spent.drafting)
        if longest:
            constant, each = self.drafting.line()
            drafting = constant + each * longest if first else spent.drafting
            passes = self.costs.of(spent.rows) - self.costs.of(spent.rows - sum(map(len, drafts)))
            lost = (drafting / self.slow + passes) / self.costs.of(len(batch)) - accepted / len(batch)
            self.vain = max(self.vain + min(lost, LOAN / 2), 0.0)  # one step that was held up proves nothing

    def _learn(self, own: Record, made: Made, draft: Draft, turn: Turn) -> int:
        """What became of one draft; how many of its tokens were accepted."""
        pending = len(turn.keep) + 1 - len(turn.emissions)
        path = {row - pending for row in turn.keep[pending:]}
        for record in (self.everybody, own):
            record.learn(made, len(path), self.steps)
        for node, parent in enumerate(draft.parents):
            if parent < 0 or parent in path:
                self.trust[draft.source_of(node)].learn(*cell(draft, node), node in path, self.steps)
        return len(path)


def cell(draft: Draft, node: int) -> tuple[int, int]:
    """Where a node is counted: its depth, and its confidence or that there is none."""
    depth = min(draft.depths[node], DEPTHS) - 1
    if draft.confidence is None:
        return depth, BINS
    return depth, min(int(sqrt(max(draft.confidence[node], 0.0)) * BINS), BINS - 1)
