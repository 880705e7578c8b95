"""The length with the best goodput: tokens that a step should write, over what it costs (SmartSpec, 2406.14066).

With n requests and acceptance a, drafts of k tokens write n (1 - a^(k+1)) / (1 - a) and cost a pass of n (k + 1) rows
and k tokens' drafting. a is a moving average over all requests; what passes cost is measured when the planner is made,
what drafting costs as it goes. Under load, or where drafts are refused, the best length is zero; what is not tried is
forgotten, so that it is tried again.
Does not: tell requests apart (`tetris` does, `auto` does); know what a tree is; give a seed the same text twice where
the verifier is not `match`, because load and measured times differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.planners.contract import Fate, Planner, Spent
from forerun.types import Context, Draft, Facts, Setup, Turn

MEMORY = 0.97  # what a step counts for after the next one
FIRST, PRIOR = 0.7, 4.0  # acceptance that is believed in at first, and how many tokens' worth
MARGIN = 1.1  # how much better than plain decoding a length has to be


class SmartSpecPlanner(Planner):
    """One length for the batch, down to zero."""

    facts = Facts(keys=("smartspec",), paper="2406.14066", clocked=True, evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """`most`: nodes of one request in one step."""

        most: int = 16

        def __post_init__(self) -> None:
            if self.most < 1:
                message = f"planner 'smartspec': most is {self.most}"
                raise ConfigError(f"{message}; give at least 1, or planner='fixed:nodes=0'.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.costs = options, setup.costs()
        self.accepted, self.judged = 0.0, 0.0  # tokens, the older ones counting less
        self.each = 0.0  # seconds per drafted token

    @property
    def acceptance(self) -> float:
        """The moving average."""
        return (self.accepted + PRIOR * FIRST) / (self.judged + PRIOR)

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        count = len(batch)
        if not count:
            return []
        best, length, written = MARGIN * count / self.costs.of(count), 0, float(count)
        for k in range(1, min(self.options.most, room // count) + 1):
            written += count * self.acceptance**k
            goodput = written / (self.costs.of(count * (k + 1)) + k * self.each)
            if goodput > best:
                best, length = goodput, k
        return [length] * count

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        fates = [Fate.of(0, turn) for turn in turns if turn.drafted]
        accepted = sum(fate.accepted for fate in fates)
        self.accepted = MEMORY * self.accepted + accepted
        self.judged = MEMORY * self.judged + accepted + sum(not fate.whole for fate in fates)
        if fates:
            seconds = spent.drafting / max(fate.depth for fate in fates)
            self.each = seconds if not self.each else self.each + (1 - MEMORY) * (seconds - self.each)
