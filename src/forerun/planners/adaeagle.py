"""A predictor reads off the target's hidden state how much of a draft will be accepted (AdaEAGLE, 2412.18910).

The state is that of the newest token that the target has read, from the pass that judged the last draft; the length is
weight . state + bias, rounded. The predictor is a file of `forerun train lengths`, for one target and its drafter.
Does not: have hidden layers, as the paper's predictor does; look at load or cost; know a request whose prompt the
target has not read to its end: the first draft has the usual length.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from forerun.errors import ConfigError
from forerun.host import fetch
from forerun.planners.contract import Fate, SoloPlanner
from forerun.types import Context, Facts, Floats, Need, Outcome, Setup

_TRAIN = "train one with `forerun train lengths`"


@dataclass(frozen=True)
class Predictor:
    """How many drafted tokens are accepted after a hidden state."""

    layer: int
    weight: Floats  # [hidden]
    bias: float
    usual: float  # the mean of what it was trained on

    def length(self, state: Floats) -> float:
        """What it says of a hidden state [hidden]."""
        return float(self.weight @ state) + self.bias


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
        self.options, self.predictor = options, load(options.file)
        self.hidden = (self.predictor.layer,)
        if len(self.predictor.weight) != setup.hidden_size:
            sizes = f"reads {len(self.predictor.weight)} numbers and the model's hidden states have {setup.hidden_size}"
            raise ConfigError(f"planner 'adaeagle': the predictor {sizes}; it is another model's, {_TRAIN}.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(file="toy:0:7")

    def start(self) -> Expected:
        return Expected(self.predictor.usual)

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
            state = fetch(outcome.output.hidden[self.predictor.layer][row].float())
            self.kept(context).tokens = self.predictor.length(state)


def load(name: str) -> Predictor:
    """The predictor in a file; toy:SEED:WIDTH is a random one."""
    place = files("forerun") / "reference" / "target" / "lengths.json" if name == "reference" else Path(name)
    try:
        if name.startswith("toy:"):
            seed, width = (int(part) for part in name.split(":")[1:])
            return Predictor(-1, np.random.default_rng(seed).normal(size=width), 1.0, 1.0)
        found = json.loads(place.read_text(encoding="utf-8"))
        numbers = (float(found[part]) for part in ("bias", "usual"))
        return Predictor(int(found["layer"]), np.array(found["weight"], np.float32), *numbers)
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise ConfigError(f"planner 'adaeagle': {name!r} is no predictor ({problem!r}); {_TRAIN}.") from problem
