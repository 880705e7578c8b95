"""As many nodes as were accepted lately: a moving average that rises faster than it falls (exllamav3, 2026).

A draft that was accepted whole counts one more than was seen, since a longer one might have been. Where the average
falls below `skip` nothing is drafted, but for a short trial every `probe` steps. Per request; exllamav3 drafts as much
for everybody as for the request that asks for most, because its passes are not ragged.
Does not: look at load or cost; know what a tree is (it counts accepted tokens, of which a tree has fewer than nodes).
"""

from dataclasses import dataclass
from math import ceil

from forerun.errors import ConfigError
from forerun.planners.contract import Fate, SoloPlanner
from forerun.types import Context, Facts, Setup

TRIED = 2  # nodes of a trial


@dataclass(eq=False, slots=True)
class Average:
    """Of the tokens that a request's drafts brought."""

    tokens: float | None = None  # None before the first draft
    skipped: int = 0  # steps since the last trial


class AsymmetricPlanner(SoloPlanner):
    """The average, rounded up."""

    facts = Facts(paper="exllamav3, 2026, dynamic draft tokens", solo=True, evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """`most`: nodes of one draft; `up` and `down`: the newest draft's weight where it raises or lowers the average.

        `skip`: accepted tokens per draft below which drafting pauses; `probe`: steps from trial to trial.
        """

        most: int = 8
        up: float = 1.3
        down: float = 0.65
        skip: float = 0.3
        probe: int = 16

        def __post_init__(self) -> None:
            if self.most < 1 or self.probe < 1:
                message = f"planner 'asymmetric': most is {self.most} and probe is {self.probe}"
                raise ConfigError(f"{message}; give at least 1 of each, or planner='fixed:nodes=0'.")
            if not self.skip >= 0:
                raise ConfigError(f"planner 'asymmetric': skip is {self.skip}; give 0 or more tokens, 0 never pauses.")
            if not (0 < self.down <= 1 and self.up > 0):
                message = f"planner 'asymmetric': up is {self.up} and down is {self.down}"
                raise ConfigError(f"{message}; give weights above 0, and down at most 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def start(self) -> Average:
        return Average()

    def wish(self, context: Context, kept: Average) -> int:
        if kept.tokens is None:
            return self.options.most
        if kept.tokens >= self.options.skip:
            kept.skipped = 0
            return max(1, min(ceil(kept.tokens), self.options.most))
        kept.skipped = (kept.skipped + 1) % self.options.probe
        return 0 if kept.skipped else min(TRIED, self.options.most)

    def learn(self, kept: Average, fate: Fate) -> None:
        seen = fate.accepted + fate.whole
        if kept.tokens is None:
            kept.tokens = float(seen)
            return
        weight = self.options.up if seen > kept.tokens else self.options.down
        kept.tokens += weight * (seen - kept.tokens)
