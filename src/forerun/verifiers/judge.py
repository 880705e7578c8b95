"""Judge decoding (2501.19309): a small head on the target's hidden states says whether a token is right, likely or not.

A drafted x stays if the head, on the hidden state that the target has after reading x, gives it more than `threshold`,
or if rejection sampling accepts it; a token that both refuse leaves norm(max(p - q, 0)) behind, as in `rejection`. What
is banned or cut off never stays. The head is a file of `forerun train judge`, one row of weights, for one target.
Does not: know what is true: the bundled head was trained without anybody's judgement, to tell a text's own tokens from
the drafter's; the paper's was trained on answers that people marked.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from forerun.errors import ConfigError
from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Floats, Need, Target, Verdict
from forerun.verifiers.contract import SoloVerifier

_TRAIN = "train one with `forerun train judge`"


@dataclass(frozen=True)
class Head:
    """The probability that a token is right is 1 / (1 + exp(-(weight . state + bias)))."""

    layer: int
    weight: Floats  # [hidden]
    bias: float

    def chance(self, state: Floats) -> float:
        """What the head says of a hidden state."""
        if len(state) != len(self.weight):
            sizes = f"reads {len(self.weight)} numbers and the model's hidden states have {len(state)}"
            raise ConfigError(f"verifier 'judge': the head {sizes}; it is another model's, {_TRAIN}.")
        return float(0.5 + 0.5 * np.tanh((self.weight @ state + self.bias) / 2))  # never overflows


class JudgeVerifier(SoloVerifier):
    """Accept what the head finds right, and what rejection sampling accepts."""

    facts = Facts(
        keys=("judge",),
        paper="2501.19309",
        needs=frozenset({Need.HIDDEN_STATES, Need.TRAINING}),
        exact=False,
        evidence="docs/results/README.md#fidelity",
    )

    @dataclass(frozen=True)
    class Options:
        """`head`: a file, or 'reference' for the bundled model's; `threshold`: 1 leaves rejection sampling alone."""

        head: str = "reference"
        threshold: float = 0.5

        def __post_init__(self) -> None:
            if not 0 <= self.threshold <= 1:
                message = f"verifier 'judge': threshold is {self.threshold}"
                raise ConfigError(f"{message}; it is a probability, give a number from 0 to 1.")

    def __init__(self, options: Options) -> None:
        self.options, self.head = options, load(options.head)
        self.hidden = (self.head.layer,)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(head="toy:0:7")

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            p = target[node]
            for child in draft.children(node):
                x, q = draft.tokens[child], draft.drawn_from(child)
                chance = 1.0 if self._right(draft, child, target) else p.prob(x) / q.prob(x)
                if rng.bernoulli(chance, Purpose.ACCEPT, len(path), child):
                    node, path = child, (*path, child)
                    break
                p = p.minus(q)
            else:
                return Verdict(path, rng.categorical(p, Purpose.TARGET, len(path)))

    def _right(self, draft: Draft, node: int, target: Target) -> bool:
        """Whether the head says so, and nothing forbids the token."""
        allowed = target.soft(draft.parents[node]).prob(draft.tokens[node]) > 0
        return allowed and self.head.chance(target.hidden(self.head.layer, node)) > self.options.threshold


def load(name: str) -> Head:
    """The head in a file; toy:SEED:WIDTH is a random one."""
    place = files("forerun") / "reference" / "target" / "judge.json" if name == "reference" else Path(name)
    try:
        if name.startswith("toy:"):
            seed, width = (int(part) for part in name.split(":")[1:])
            return Head(-1, np.random.default_rng(seed).normal(size=width), 0.0)
        found = json.loads(place.read_text(encoding="utf-8"))
        return Head(int(found["layer"]), np.array(found["weight"], np.float32), float(found["bias"]))
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise ConfigError(f"verifier 'judge': {name!r} is no head ({problem!r}); {_TRAIN}.") from problem
