"""Thompson sampling: how much to draft is drawn from what is believed of the drafter (EESD, 2406.03853).

After every drafted token a chance is drawn from the Beta posterior of a token's acceptance, and drafting goes on with
that chance. Accepted tokens and the first refused one of each draft are what the posterior knows. The draws are keyed
by the request's seed and its place in the text, so a text can be had again.
Does not: exit early, as the paper's drafter does (this is its control alone); know what the drafter thinks of a token.
"""

from dataclasses import dataclass

import numpy as np

from forerun.errors import ConfigError
from forerun.planners.contract import Fate, SoloPlanner
from forerun.rng import Purpose
from forerun.types import Context, Facts, Setup

_INDEX = -(1 << 40)  # of a number that no draft draws by


@dataclass(eq=False, slots=True)
class Belief:
    """The Beta distribution of the chance that a token is accepted."""

    accepted: float
    refused: float


class EesdThompsonPlanner(SoloPlanner):
    """A posterior per request."""

    facts = Facts(keys=("eesd-thompson",), paper="2406.03853", solo=True, evidence="docs/results/README.md#planners")

    @dataclass(frozen=True)
    class Options:
        """`most`: nodes of one draft; `accepted` and `refused`: tokens of either kind that are believed in at first."""

        most: int = 16
        accepted: float = 3.0
        refused: float = 1.0

        def __post_init__(self) -> None:
            if self.most < 1 or not (self.accepted > 0 and self.refused > 0):
                message = (
                    f"planner 'eesd-thompson': most is {self.most}, accepted {self.accepted}, refused {self.refused}"
                )
                raise ConfigError(f"{message}; give a most of 1 or more, and numbers above 0.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def start(self) -> Belief:
        return Belief(self.options.accepted, self.options.refused)

    def wish(self, context: Context, kept: Belief) -> int:
        number = context.rng.ahead(Purpose.DRAFT, 0, _INDEX) or 0.0  # where every outcome is visited, lengths are not
        rng = np.random.default_rng((int(number * (1 << 53)), len(context.tokens)))
        goes_on = rng.random(self.options.most - 1) < rng.beta(kept.accepted, kept.refused, self.options.most - 1)
        return 1 + int(np.logical_and.accumulate(goes_on).sum())

    def learn(self, kept: Belief, fate: Fate) -> None:
        kept.accepted += fate.accepted
        kept.refused += not fate.whole
