"""Judge decoding (2501.19309): a small head on the target's hidden states says whether a token is right, likely or not.

A drafted x stays if the head, on the hidden state that the target has after reading x, gives it more than `threshold`,
or if rejection sampling accepts it; a token that both refuse leaves norm(max(p - q, 0)) behind, as in `rejection`. What
is banned or cut off never stays. The head is a file of `forerun train judge`, one row of weights, for one target.
Does not: know what is true: the bundled head was trained without anybody's judgement, to tell a text's own tokens from
the drafter's; the paper's was trained on answers that people marked.
"""

from dataclasses import dataclass
from math import tanh

from forerun.errors import ConfigError
from forerun.heads import load
from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Floats, Need, Target, Verdict
from forerun.verifiers.contract import SoloVerifier

_WHO, _TRAIN = "verifier 'judge'", "forerun train judge"


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
        self.options, self.head = options, load(options.head, "judge.json", _WHO, _TRAIN)
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
        return allowed and self._chance(target.hidden(self.head.layer, node)) > self.options.threshold

    def _chance(self, state: Floats) -> float:
        """The probability that a token is right, 1 / (1 + exp(-score)) in a form that never overflows."""
        self.head.fit_for(len(state), _WHO, _TRAIN)
        return 0.5 + 0.5 * tanh(self.head(state) / 2)
