"""Reward-guided speculative decoding (2501.19324): what is good enough stays, whoever wrote it.

A drafted token stays if the step so far, itself included, has a reward of at least `threshold` (the weighting 1[r >=
threshold], the paper's optimum); where no child's has, the target writes one token from p. `reward` is a function
of the caller, "module:function", of the text so far and the tokens of the step; a process reward model goes there.
Does not: bring a trained reward model (`variety` is a stand-in that knows repetition only); let the target write the
rest of a step by itself: the drafter guesses on after its token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

from forerun.errors import ConfigError
from forerun.member import imported
from forerun.rng import Purpose, Rng
from forerun.types import Draft, Facts, Target, Verdict
from forerun.verifiers.contract import SoloVerifier

Reward = Callable[[Sequence[int], tuple[int, ...]], float]


class RewardGuidedVerifier(SoloVerifier):
    """Accept by reward; p is asked where the reward is low."""

    facts = Facts(keys=("reward-guided",), paper="2501.19324", exact=False, evidence="docs/results/README.md#fidelity")

    @dataclass(frozen=True)
    class Options:
        """`reward`: "module:function" of (text, step); `threshold`: the reward that suffices."""

        reward: str = "forerun.verifiers.reward_guided:variety"
        threshold: float = 0.7

        def __post_init__(self) -> None:
            if isnan(self.threshold):
                raise ConfigError(
                    "verifier 'reward-guided': threshold is nan; give a number, on the reward's own scale."
                )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.reward: Reward = imported(options.reward, "verifier 'reward-guided': the reward")

    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        step: tuple[int, ...] = ()
        while True:
            allowed = [x for x in draft.children(node) if target.soft(node).prob(draft.tokens[x]) > 0]
            ways = [(child, (*step, draft.tokens[child])) for child in allowed]
            hit = next((way for way in ways if self.reward(target.text, way[1]) >= self.options.threshold), None)
            if hit is None:
                return Verdict(path, rng.categorical(target[node], Purpose.TARGET, len(path)))
            node, step = hit
            path = (*path, node)


def variety(text: Sequence[int], step: tuple[int, ...]) -> float:
    """Share of the step's tokens that repeat no trigram of the text or of the step."""
    whole = [*text, *step]
    grams = list(zip(whole, whole[1:], whole[2:], strict=False))
    own = min(len(step), len(grams))
    old = set(grams[: len(grams) - own])
    fresh = len({*grams} - old)
    return fresh / own if own else 1.0
