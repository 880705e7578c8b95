"""What steps take beside the target's pass: turns without drafts, and what drafts add to them.

Both are seconds by the clock, of making drafts as well as of the engine's and the planner's own work, and both depend
on how many requests there are: counted apart for 1, 2 to 3, 4 to 7 and so on. Where nothing is known the nearest
speaks.
Does not: tell the text that tokens become from the rest; of a step it is the one of the step before.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from forerun.drafting.worth import MEMORY

HELD_UP = 1.5  # times as long as expected, at most, may a step have taken: one that was held up says little
SURE = 8  # and so many that took as long on average were not all held up
RAN_FREE = 0.67  # times as long: what was expected is doubted, for nothing makes a step shorter than it is
DOUBT = 0.5  # what older steps count for then
COLD = 6  # steps that take longer than later ones may, as nobody took one before: of these, only shorter ones count
ALIKE = 0.5  # steps that the opinion weighs that a draft costs as much as one level more of it


@dataclass(eq=False)
class Line:
    """Seconds, constant + each x nodes, by least squares over the latest steps; alike where little is known."""

    sums: tuple[float, ...] = (0.0,) * 5  # of 1, n, n^2, s, n s
    seen: int = 0

    def learn(self, nodes: int, seconds: float, steps: int = 1) -> float:
        """So many steps that took as long each; their seconds as far as they are believed."""
        older, cold = MEMORY**steps, self.seen < COLD
        self.seen += steps
        if self.sums[0]:
            constant, each = self.found()
            expected = constant + each * nodes
            if seconds < (1.0 if cold else RAN_FREE) * expected:
                older = 0.0 if cold else DOUBT
            seconds = min(seconds, (1.0 if cold else HELD_UP ** min(steps, SURE)) * expected)
        news = 1, nodes, nodes * nodes, seconds, nodes * seconds
        self.sums = tuple([older * before + steps * one for before, one in zip(self.sums, news, strict=True)])
        return seconds

    def found(self) -> tuple[float, float]:
        """(constant, each), neither below 0; something must have been learnt."""
        one, n, nn, s, ns = self.sums
        spread = (one + ALIKE) * (nn + ALIKE) - (n - ALIKE) ** 2
        constant = (s * (nn + ALIKE) - ns * (n - ALIKE)) / spread
        each = (ns * (one + ALIKE) - s * (n - ALIKE)) / spread
        if constant < 0:
            return 0.0, ns / nn
        return (constant, each) if each > 0 else (s / one, 0.0)


class Toll:
    """By how many requests there are: of a step without drafts, and what drafts of some requests add to it."""

    def __init__(self) -> None:
        self.idle = dict[int, float]()
        self.rests = defaultdict[int, int](int)  # how many of them were seen
        self.lines = defaultdict[int, Line](Line)

    @property
    def known(self) -> bool:
        """Whether drafts were seen more than once."""
        return self.seen > 1

    @property
    def warm(self) -> bool:
        """Whether the first drafts are past."""
        return self.seen >= COLD

    @property
    def seen(self) -> int:
        """How many steps with drafts."""
        return sum(line.seen for line in self.lines.values())

    def bare(self, requests: int) -> bool:
        """Whether a step of about as many was seen without drafts."""
        return requests.bit_length() in self.idle

    def without(self, requests: int) -> float:
        """Seconds of a step without drafts; some must have been seen."""
        return self.idle[_nearest(self.idle, requests)]

    def line(self, drafting: int) -> tuple[float, float]:
        """(constant, each) of what drafts of so many requests add, by the nodes of the longest; zeros before any.

        Those of more requests than were seen are thought to add more, by the root: a part of it is there for each.
        """
        known = {size: line for size, line in self.lines.items() if line.seen >= COLD} or self.lines  # past the first
        if not known:
            return 0.0, 0.0
        nearest = _nearest(known, drafting)
        constant, each = known[nearest].found()
        more: float = 2 ** (max(drafting.bit_length() - nearest, 0) / 2)
        return more * constant, more * each

    def rested(self, requests: int, seconds: float, steps: int = 1) -> None:
        """So many steps without drafts."""
        size = requests.bit_length()
        before = self.idle.get(size, seconds)
        self.rests[size] += steps
        warm = self.rests[size] - COLD
        news = min(seconds, HELD_UP ** min(steps, SURE) * before) - before
        if warm > 0:
            self.idle[size] = before + max(1 - MEMORY**steps, min(steps / warm, 1.0)) * news
        else:
            self.idle[size] = before + min(news, 0.0)

    def drafted(
        self, requests: int, drafting: int, longest: int, seconds: float, around: float, steps: int = 1
    ) -> float:
        """What drafts added to each of so many steps in which some were `drafting`, as far as it is believed.

        `around`: their seconds beside those that made the drafts; without drafts they would have taken no longer.
        """
        size = requests.bit_length()
        if size not in self.idle:  # what others take says nothing of what drafts add
            return 0.0
        self.idle[size] = min(self.idle[size], around)
        return self.lines[drafting.bit_length()].learn(longest, max(seconds + around - self.idle[size], 0.0), steps)


def typical(seconds: Sequence[float], most: float = HELD_UP) -> float:
    """The mean of times that should be the same, none of which counts for much more than the middle one."""
    most *= median_low(seconds)
    return sum(min(one, most) for one in seconds) / len(seconds)


def _nearest(known: Mapping[int, Any], requests: int) -> int:
    size = requests.bit_length()
    return size if size in known else min(known, key=lambda other: abs(other - size))
