"""Medians with their spread; ratios only of runs that were made together.

Does not: assume a distribution. The spread is the range of the middle half of the runs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, between neighbours by a straight line; 0.5 is the median."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and number of runs."""

    median: float
    low: float  # first quartile
    high: float  # third quartile
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of some runs; zeros where there are none."""
        median, low, high = (quantile(values, share) for share in (0.5, 0.25, 0.75))
        return cls(median, low, high, len(values))

    def shown(self, digits: int = 2) -> str:
        """The median and, where there are several runs, the middle half of them."""
        if self.runs < 2:  # noqa: PLR2004 - one run has no spread
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def clocks(seconds: Sequence[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """The spreads, in microseconds, of times by the clock and of the processor's own, which sees no other program."""
    wall, own = zip(*seconds, strict=True)
    return {name: asdict(Spread.of([1e6 * s for s in times])) for name, times in (("us", wall), ("cpu_us", own))}


def told(case: dict[str, Any]) -> str:
    """Such spreads in a table: the clock's, and the median of the processor's own."""
    return f"{Spread(**case['us']).shown(0)} / {case['cpu_us']['median']:.0f}"


@dataclass(frozen=True)
class Beside:
    """One figure, without a method and with it."""

    method: str
    work: str
    figure: str
    without: float
    within: float
    over: str  # how many texts, places or pairs

    @classmethod
    def means(cls, method: str, work: str, figure: str, sides: Sequence[Sequence[float]], over: str) -> "Beside":
        """The mean of each side's values."""
        free, held = sides
        return cls(method, work, figure, fmean(free), fmean(held), over)
