"""One length for the batch: it grows where some draft was accepted whole, else it shrinks (BASS, 2404.15778).

Alg. 1: it grows by `grow`; it shrinks by a tenth, rounded up, and by one more where it shrank before, but never below
the most that was accepted. Requests accept each its own number of tokens, for passes are ragged anyway.
Does not: look at load or cost; go down to zero; let a request whose drafts are refused draft less than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from forerun.errors import ConfigError
from forerun.planners.contract import Fate, Planner, Spent, within
from forerun.types import Context, Draft, Facts, Setup, Turn

SHARE = 10  # the length shrinks by one part in so many


class BassPlanner(Planner):
    """One number, moved by the batch."""

    facts = Facts(keys=("bass",), paper="2404.15778", evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """`start`: nodes per request at first; `grow`: how many more; `most`: of one request in one step."""

        start: int = 7
        grow: int = 2
        most: int = 32

        def __post_init__(self) -> None:
            if not 1 <= self.start <= self.most or self.grow < 0:
                message = f"planner 'bass': start is {self.start}, most is {self.most} and grow is {self.grow}"
                raise ConfigError(f"{message}; give a start from 1 to most, and a grow of 0 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.length, self.shrank = options, options.start, False

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(start=2)

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        return within([self.length] * len(batch), room)

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        fates = [Fate.of(self.length, turn) for turn in turns if turn.drafted]
        if any(fate.full for fate in fates):
            self.length, self.shrank = min(self.length + self.options.grow, self.options.most), False
        elif not all(fate.whole for fate in fates):
            shorter = self.length - ceil(self.length / SHARE) - self.shrank
            self.length, self.shrank = max(1, shorter, *(fate.accepted for fate in fates)), True
