"""What the target's passes take by their rows, as they go now.

Measured costs say how passes compare on a quiet machine with one request; what the passes of steps took corrects them
by a factor, counted apart for 1, 2 to 3, 4 to 7 rows and so on, with a straight line between what was seen. So a wrong
profile, many requests' contexts and a busy machine are found out, where rows cost more as well as where all passes do.
Passes without drafts are counted apart from others of their size: what drafts cost is the difference between the two.
What was not seen for a while moves with what is: a busy machine is slow with drafts and without. Nor does a pass take
longer than one of more rows: sizes that are met for moments, while others come and go, are met at busy ones.
Does not: look at passes that read prompts, which ask for few logits; whoever calls `learn` leaves them out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from forerun.drafting.toll import DOUBT, HELD_UP, RAN_FREE, SURE
from forerun.drafting.worth import MEMORY
from forerun.types import Costs

KNOWN = 8  # passes of a size after which others move with it,
STALE = 8  # if they were not seen for as many; one without drafts then says as much as so many that follow on others
USUAL = 2  # of so many passes one is of a size by which others are judged: a seldom one may have been held up
COLD = 3  # passes of a size that take longer than later ones may: of these, only shorter ones count


@dataclass(eq=False, slots=True)
class Pace:
    """Of passes of about as many rows."""

    rows: float  # a moving average
    factor: float  # seconds over what was measured
    seen: int = 0
    latest: int = 0  # of all passes


class Seen(NamedTuple):
    """Passes of as many rows, in steps that follow on each other."""

    rows: int
    seconds: float  # each, on average
    drafts: bool
    steps: int = 1


class Passes:
    """Seconds of passes; `costs` is asked when the first is weighed."""

    def __init__(self, costs: Callable[[], Costs]) -> None:
        self._costs, self.paces = costs, dict[tuple[int, bool], Pace]()
        self._known: list[Pace] = []  # by their rows
        self._bounds: list[tuple[int, float]] = []  # falling rows, and seconds that no smaller pass takes
        self._count = 0  # of passes
        self._now = dict[int, float]()  # seconds by rows, until there is news

    @cached_property
    def costs(self) -> Costs:
        """As they were measured."""
        return self._costs()

    def of(self, rows: int) -> float:
        """One pass."""
        seconds = self._now.get(rows)
        if seconds is None:
            seconds = self._now[rows] = min(self.costs.of(rows) * self._factor(rows), self._bound(rows))
        return seconds

    def between(self, rows: float) -> float:
        """As many rows as there are on average."""
        whole = int(rows)
        seconds = self.of(whole)
        return seconds + (rows - whole) * (self.of(whole + 1) - seconds)

    def _factor(self, rows: int) -> float:
        """By a straight line between what was seen; a loop, as calls of numpy take longer than all of it."""
        below: Pace | None = None
        for pace in self._known:
            if pace.rows >= rows:
                if below is None:
                    return pace.factor
                share = (rows - below.rows) / (pace.rows - below.rows)
                return below.factor + share * (pace.factor - below.factor)
            below = pace
        return below.factor if below is not None else 1.0

    def _bound(self, rows: int) -> float:
        """Seconds of the shortest among those with as many rows or more that were seen."""
        if not self._now:  # first asked since there was news
            self._bounds, least = [], inf
            for one in [one for one in reversed(self._known) if one.seen > COLD]:
                least = min(least, self.costs.of(at := round(one.rows)) * one.factor)
                self._bounds.append((at, least))
        return next((seconds for size, seconds in reversed(self._bounds) if size >= rows), inf)

    def warm(self, requests: int) -> bool:
        """Whether passes without drafts of about as many were seen when they were no longer the first."""
        pace = self.paces.get((requests.bit_length(), False))
        return pace is not None and pace.seen > COLD

    def learn(self, *seen: Seen) -> None:
        """What passes of some steps took; one that was held up says little."""
        self._count += sum(one.steps for one in seen)
        paces = [self._pace(one) for one in seen]
        passed = [self._count - pace.latest for pace in paces]  # since the last of its size
        for pace in paces:
            pace.latest = self._count
        for one, pace, ago in zip(seen, paces, passed, strict=True):
            self._believe(one, pace, max(ago / one.steps, 1.0))
            self._known = sorted(self.paces.values(), key=_rows)
            self._now.clear()

    def _pace(self, one: Seen) -> Pace:
        """Of passes of this size."""
        size = one.rows.bit_length(), one.drafts
        if size not in self.paces:
            self.paces[size] = Pace(one.rows, self._factor(one.rows))
        return self.paces[size]

    def _believe(self, one: Seen, pace: Pace, among: float) -> None:
        """These are one of so many passes."""
        before, known, share = self._factor(one.rows), pace.factor, 1 - MEMORY**one.steps
        if among >= STALE and not one.drafts:
            share = 1 - (1 - share) ** STALE
        pace.seen += one.steps
        warm = pace.seen - COLD
        pace.rows += max(share, one.steps / pace.seen) * (one.rows - pace.rows)
        news = min(one.seconds / self.costs.of(one.rows), HELD_UP ** min(one.steps, SURE) * before) - known
        free = news < (RAN_FREE - 1) * known
        if warm > 0:
            pace.factor += max(share, min(one.steps / (warm + 1), 1.0), DOUBT if free else 0.0) * news
        else:
            pace.factor += min(news, 0.0)
        if warm > KNOWN:  # the machine has changed, not what was thought of such passes
            change, sure = pace.factor / known, free and not one.drafts and among <= USUAL
            self._follow(change if sure else change ** (1 / among), 1 if sure else STALE)

    def _follow(self, change: float, unseen: int) -> None:
        """All that was not seen for so many passes."""
        for pace in self.paces.values():
            if self._count - pace.latest >= unseen:
                pace.factor *= change


def _rows(pace: Pace) -> float:
    return pace.rows
