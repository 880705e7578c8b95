"""What the target's passes take by their rows, as they go now.

Measured costs say how passes compare on a quiet machine with one request; what the passes of steps took corrects them
by a factor, counted apart for 1, 2 to 3, 4 to 7 rows and so on, with a straight line between what was seen. So a wrong
profile, many requests' contexts and a busy machine are found out, where rows cost more as well as where all passes do.
Does not: look at passes that read prompts, which ask for few logits; whoever calls `learn` leaves them out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from forerun.drafting.toll import HELD_UP
from forerun.drafting.worth import MEMORY
from forerun.types import Costs, Floats


@dataclass(eq=False, slots=True)
class Pace:
    """Of passes of about as many rows."""

    rows: float  # a moving average
    factor: float  # seconds over what was measured
    seen: int = 0


class Passes:
    """Seconds of passes; `costs` is asked when the first is weighed."""

    def __init__(self, costs: Callable[[], Costs]) -> None:
        self._costs, self.paces = costs, dict[int, Pace]()
        self._known: tuple[list[float], list[float]] = ([1.0], [1.0])  # rows and factors
        self._measured = cache(self._measure)

    @cached_property
    def costs(self) -> Costs:
        """As they were measured."""
        return self._costs()

    def of(self, rows: int) -> float:
        """One pass."""
        return self.costs.of(rows) * float(np.interp(rows, *self._known))

    def upto(self, rows: int, more: int) -> Floats:
        """Passes of `rows` and up to `more` rows more: [more + 1]."""
        counts, seconds = self._measured(rows, more)
        return seconds * np.interp(counts, *self._known)

    def _measure(self, rows: int, more: int) -> tuple[Floats, Floats]:
        counts = range(rows, rows + more + 1)
        return np.array(counts, float), np.array([self.costs.of(count) for count in counts])

    def learn(self, rows: int, seconds: float) -> None:
        """What a pass took; one that was held up says little."""
        size, before = rows.bit_length(), float(np.interp(rows, *self._known))
        pace = self.paces.setdefault(size, Pace(rows, before))
        pace.seen += 1
        news = max(1 - MEMORY, 1 / pace.seen)
        pace.rows += news * (rows - pace.rows)
        pace.factor += news * (min(seconds / self.costs.of(rows), HELD_UP * before) - pace.factor)
        known = [self.paces[size] for size in sorted(self.paces)]
        self._known = [pace.rows for pace in known], [pace.factor for pace in known]
