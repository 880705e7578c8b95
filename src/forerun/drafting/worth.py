"""What drafts were worth: how often nodes are accepted, and what each further node of a request's drafts brought.

A node's chance, if its parent is accepted, is counted by who guessed it, how deep and with which confidence. Older
counts weigh less, so that what changes is noticed.
Does not: know what drafts cost.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple

from forerun.types import Draft, Turn

MEMORY = 0.97  # what a step counts for after the next one
STALE = 0.3  # what all counts for, at least, after a time without news
PRIOR = 2.0  # observations that an opinion weighs against the more special one;
PEERS = 8.0  # and what is known of all requests against one's own: they differ by less than their first drafts do
CURIOUS = 6.0  # drafts of a text that count as if they had come true as often as others, over the squared number of
# texts, where there are several: they differ, and of those that nobody has drafted for some pay
HOPE = 0.8  # what is thought of a node of which nobody says or knows anything
DEPTHS, BINS = 4, 10  # that are counted apart; the last depth holds the deeper ones, bins are of sqrt(confidence)
REMEMBERED_TOKENS = 32.0  # of a request, by which it is told from others
Opinion = tuple[list[float], list[float]]  # by the number of a node: what it is worth, and how often it is verified
Offer = tuple[float, int, int, float]  # a node's worth, negative; whose it is, its number, how often it is verified


FADED = tuple(max(MEMORY**steps, STALE) for steps in range(64))


def faded(steps: int) -> float:
    """What older counts are worth now."""
    return FADED[min(steps, len(FADED) - 1)]


@dataclass(eq=False, slots=True)
class Count:
    """How often something was seen, and happened, lately."""

    asked: float = 0.0
    happened: float = 0.0
    step: int = 0  # of the latest news

    def learn(self, happened: float, step: int) -> None:
        share, self.step = faded(step - self.step), step
        self.asked, self.happened = share * self.asked + 1, share * self.happened + happened

    def rate(self, opinion: float) -> float:
        """How often it happens; `opinion` where little is known."""
        return (self.happened + PRIOR * opinion) / (self.asked + PRIOR)


class Trust:
    """How often nodes of one source are accepted if their parent is, by depth and confidence."""

    def __init__(self) -> None:
        self.bins = [Count() for _ in range(BINS + 1)]  # the last: no confidence given
        self.cells = [[Count() for _ in range(DEPTHS)] for _ in range(BINS + 1)]
        self.known: list[list[float] | None] = [None] * (BINS + 1)  # chances, until there is news

    def chances(self, place: int) -> list[float]:
        """By depth. Where nothing is known, kinder than the confidence: what is too high is soon found out."""
        known = self.known[place]
        if known is None:
            opinion = self.bins[place].rate((place + 0.5) / BINS if place < BINS else HOPE)
            known = self.known[place] = [cell.rate(opinion) for cell in self.cells[place]]
        return known

    def learn(self, place: int, depth: int, accepted: float, step: int) -> None:
        self.bins[place].learn(accepted, step)
        self.cells[place][depth].learn(accepted, step)
        self.known[place] = None


class Trusts:
    """Of all sources."""

    def __init__(self) -> None:
        self.of = defaultdict[str, Trust](Trust)

    def chances(self, draft: Draft) -> list[float]:
        """Of every node, the chance that it is accepted if its parent is."""
        at = zip(map(draft.source_of, range(len(draft))), _places(draft), draft.depths, strict=True)
        return [self.of[source].chances(place)[min(depth, DEPTHS) - 1] for source, place, depth in at]

    def learn(self, draft: Draft, path: Collection[int], step: int) -> None:
        """The nodes on `path` were accepted."""
        places, depths = _places(draft), draft.depths
        for node, parent in enumerate(draft.parents):
            if parent < 0 or parent in path:
                depth = min(depths[node], DEPTHS) - 1
                self.of[draft.source_of(node)].learn(places[node], depth, node in path, step)


def _places(draft: Draft) -> list[int]:
    """Of every node, the bin of its confidence, or that there is none."""
    if draft.confidence is None:
        return [BINS] * len(draft)
    return [min(int(sqrt(max(chance, 0.0)) * BINS), BINS - 1) for chance in draft.confidence]


class Fate(NamedTuple):
    """What became of one draft."""

    asked: int  # nodes for which there was room
    verified: int
    path: Collection[int]  # nodes that were accepted, counted from the likeliest


@dataclass(eq=False, slots=True)
class Record:
    """What drafts of one request, or of all, were worth, by the number of a node from the likeliest: [most] each."""

    most: int
    asked: list[float] = field(init=False)  # how often, lately
    worth: list[float] = field(init=False)  # how often it was accepted
    kept: list[float] = field(init=False)  # how often it was verified
    news: list[int] = field(init=False)  # the step of the latest
    expected: float = 2 * PRIOR  # tokens, if this request were like all
    accepted: float = 2 * PRIOR
    drafts: int = 0  # of which something was verified
    tried: int = 0  # step of the latest trial

    def __post_init__(self) -> None:
        self.asked, self.worth, self.kept = ([0.0] * self.most for _ in range(3))
        self.news = [0] * self.most

    def learn(self, fates: Sequence[Fate], step: int) -> None:
        """What became of some drafts until this step."""
        asked, kept, happened = ([0] * (self.most + 1) for _ in range(3))  # the first two by numbers of nodes
        for one in fates:
            asked[one.asked] += 1
            kept[one.verified] += 1
            for node in one.path:
                happened[node] += 1
        self.drafts += len(fates) - kept[0]
        more = most = 0  # drafts that asked for this node, and in which it was verified
        for node in range(self.most - 1, -1, -1):
            more, most = more + asked[node + 1], most + kept[node + 1]
            if more:
                share, self.news[node] = faded(step - self.news[node]), step
                self.asked[node] = share * self.asked[node] + more
                self.worth[node] = share * self.worth[node] + happened[node]
                self.kept[node] = share * self.kept[node] + most

    def met(self, expected: float, accepted: int) -> None:
        """Of so many tokens that were expected of this request's drafts, if it were like all."""
        self.expected += expected
        self.accepted += accepted
        if self.expected > REMEMBERED_TOKENS:
            self.accepted *= REMEMBERED_TOKENS / self.expected
            self.expected = REMEMBERED_TOKENS

    @property
    def luck(self) -> float:
        """How many tokens were accepted for each that was expected."""
        return self.accepted / self.expected

    def offers(self, number: int, general: Opinion, least: int, running: int) -> Iterator[Offer]:
        """Nodes of these drafts, never worth more than the one before; the first `least` are worth as much each.

        Where little is known of them, it is as `general` has it, or better where few other requests are running.
        """
        falling, weight = 1.0, PEERS + (CURIOUS / running**2 if running > 1 else 0.0)
        for node in range(self.most):
            if node == 0 or node >= least:
                these = range(least) if node == 0 else (node,)
                worth = sum(self._rate(self.worth, general[0], one, weight) for one in these)
                falling = min(falling, worth / len(these))
            yield -falling, number, node, self._rate(self.kept, general[1], node, PEERS)

    def _rate(self, happened: Sequence[float], opinion: Sequence[float], node: int, weight: float) -> float:
        return (happened[node] + weight * opinion[node]) / (self.asked[node] + PEERS)

    def hoped(self) -> Opinion:
        """The same of all requests: a node of which nothing is known follows on the one before it."""
        worth, kept, before, there = list[float](), list[float](), 1.0, 1.0
        for worths, keeps, asked in zip(self.worth, self.kept, self.asked, strict=True):
            before = (worths + PRIOR * HOPE * before) / (asked + PRIOR)
            there = (keeps + PRIOR * there) / (asked + PRIOR)
            worth.append(before)
            kept.append(there)
        return worth, kept


def path_of(turn: Turn) -> set[int]:
    """The nodes that were accepted."""
    pending = len(turn.keep) + 1 - len(turn.emissions)
    return {row - pending for row in turn.keep[pending:]}


def reach(draft: Draft, chances: Sequence[float], root: float = 1.0) -> list[float]:
    """The chance that each node is accepted, if `chances` are those after its parent: no more than an elder sibling's.

    So the likeliest nodes, of equal ones the first, are always a part that `Draft.only` can take.
    """
    found: list[float] = []
    least = dict[int, float]()  # of a node's children so far
    for parent, chance in zip(draft.parents, chances, strict=True):
        least[parent] = min(chance * (found[parent] if parent >= 0 else root), least.get(parent, 1.0))
        found.append(least[parent])
    return found


def ranked(draft: Draft, path: Collection[int]) -> Collection[int]:
    """Of these nodes, how many are likelier: a smaller draft would have had the likeliest, in whatever order."""
    if draft.confidence is None or len(path) in (0, len(draft.tokens)):
        return path
    order = likeliest(reach(draft, draft.confidence), len(draft.tokens))
    return [rank for rank, node in enumerate(order) if node in path]


def paying(worths: Sequence[Sequence[float]], running: int, seconds: Callable[[int], float]) -> list[list[int]]:
    """Of each draft the nodes with which all write the most tokens per second, by the chances that they are accepted.

    `seconds`: what a step takes with so many rows, of which each request has one that is no node.
    """
    order = sorted((-worth, i, node) for i, draft in enumerate(worths) for node, worth in enumerate(draft))
    tokens, count, best = float(running), 0, running / seconds(running)
    for number, (worse, _, _) in enumerate(order, 1):
        tokens -= worse
        rate = tokens / seconds(running + number)
        if rate > best:
            best, count = rate, number
    taken: list[list[int]] = [[] for _ in worths]
    for _, i, node in order[:count]:
        taken[i].append(node)
    return taken


def likeliest(worth: Sequence[float], count: int) -> list[int]:
    """So many nodes; of equal ones the first."""
    return sorted(range(len(worth)), key=lambda node: -worth[node])[:count]
