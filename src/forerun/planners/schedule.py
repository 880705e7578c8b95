"""Two nodes more after a draft that was accepted whole, one fewer after any other (Gante 2023, assisted generation).

That is the heuristic schedule of transformers' assisted generation, kept per request. A draft that was accepted whole
and is shorter than was asked for changes nothing.
Does not: look at load or cost; go down to zero, so that it never gives a drafter up.
"""

from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.planners.contract import Fate, SoloPlanner
from forerun.types import Context, Facts, Setup

MORE, FEWER = 2, 1  # nodes


@dataclass(eq=False, slots=True)
class Length:
    """Of a request's next draft."""

    nodes: int


class SchedulePlanner(SoloPlanner):
    """Up by two, down by one."""

    facts = Facts(paper="Gante 2023, assisted generation", solo=True, evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """`start`: nodes of a request's first draft; `most`: of any."""

        start: int = 5
        most: int = 16

        def __post_init__(self) -> None:
            if not 1 <= self.start <= self.most:
                message = f"planner 'schedule': start is {self.start} and most is {self.most}"
                raise ConfigError(f"{message}; give a start of 1 or more, and at least as much as most.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(start=2)

    def start(self) -> Length:
        return Length(self.options.start)

    def wish(self, context: Context, kept: Length) -> int:
        return kept.nodes

    def learn(self, kept: Length, fate: Fate) -> None:
        if fate.full:
            kept.nodes = min(kept.nodes + MORE, self.options.most)
        elif not fate.whole:
            kept.nodes = max(kept.nodes - FEWER, 1)
