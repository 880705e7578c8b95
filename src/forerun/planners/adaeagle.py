"""A predictor reads off the target's hidden state how much of a draft will be accepted (AdaEAGLE, 2412.18910).

The state is that of the newest token that the target has read, from the pass that judged the last draft; the length is
weight . state + bias, rounded. The predictor is a file of `forerun train lengths`, for one target and its drafter.
Does not: have hidden layers, as the paper's predictor does; look at load or cost; know a request whose prompt the
target has not read to its end: the first draft has the usual length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.heads import load
from forerun.host import fetch
from forerun.planners.contract import Fate, SoloPlanner
from forerun.types import Context, Facts, Need, Outcome, Setup

_WHO, _TRAIN = "planner 'adaeagle'", "forerun train lengths"


@dataclass(eq=False, slots=True)
class Expected:
    """Accepted tokens of a request's next draft."""

    tokens: float


class AdaEaglePlanner(SoloPlanner):
    """The predicted length and `more`."""

    facts = Facts(
        keys=("adaeagle",),
        paper="2412.18910",
        needs=frozenset({Need.HIDDEN_STATES, Need.TRAINING}),
        solo=True,
        evidence="docs/results/README.md#planners",
    )

    @dataclass(frozen=True)
    class Options:
        """`file`: a predictor, or 'reference' for the bundled pair's; `more`: nodes beyond it; `most`: of one draft."""

        file: str = "reference"
        more: float = 1.0
        most: int = 16

        def __post_init__(self) -> None:
            if self.most < 1 or not self.more >= 0:
                message = f"planner 'adaeagle': most is {self.most} and more is {self.more}"
                raise ConfigError(f"{message}; give a most of 1 or more, and a more of 0 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.head = options, load(options.file, "lengths.json", _WHO, _TRAIN)
        self.head.fit_for(setup.hidden_size, _WHO, _TRAIN)
        self.hidden = (self.head.layer,)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(file="toy:0:7")

    def start(self) -> Expected:
        return Expected(self.head.usual)

    def wish(self, context: Context, kept: Expected) -> int:
        return min(max(round(kept.tokens + self.options.more), 0), self.options.most)

    def learn(self, kept: Expected, fate: Fate) -> None:
        """What became of a draft says nothing that the state does not."""

    def see(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            if outcome.verdict is None or outcome.draft is None:
                continue
            row = len(outcome.work.tokens) - len(outcome.draft) - 1
            row += 1 + outcome.verdict.path[-1] if outcome.verdict.path else 0
            state = fetch(outcome.output.hidden[self.head.layer][row].float())
            self.kept(context).tokens = self.head(state)
