"""Whether two outputs of one model are equal, tied, or different.

Sums in another order may change a logit's last bits. Where the two tokens at the first difference have, after the
same beginning, logits within that noise of the best one, or of winning the draw where they are drawn, either is the
model's own: a tie. Anything else is a divergence, which is an error of forerun or of a member.
Does not: compare what follows a tie; the texts have different beginnings from there on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from forerun.engine.runner import ModelRunner
from forerun.kernels.race import times
from forerun.rng import CounterRng, Purpose
from forerun.sampling import Shaper
from forerun.types import Guide, Sampling, Work

FLOAT_MARGIN = 1e-4  # of a logit, in float32 and float64
_MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10}
_ULPS = 2

Logits = Callable[[Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """The first place at which a text differs from plain decoding's."""

    kind: str  # "tie" or "divergence"
    position: int  # tokens written before it
    expected: int | None  # plain decoding's token; None where its text had ended
    found: int | None
    gap: float  # how far the worse of the two is from being chosen
    margin: float  # the most that is noise


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Position of the first token that is not the same; None for equal texts."""
    pairs = zip_longest(expected, found)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def margin(best: float, dtype: torch.dtype) -> float:
    """How far from the best logit a logit may be by rounding alone: 1e-4, or two units in the last place of `best`."""
    bits = _MANTISSA_BITS.get(dtype)
    if bits is None:
        return FLOAT_MARGIN
    return _ULPS * 2.0 ** (math.frexp(best)[1] - 1 - bits) if best else FLOAT_MARGIN


class Judge:
    """Compares texts of one model; asks the model itself at the first difference."""

    def __init__(
        self, logits: Logits, dtype: torch.dtype, eos: tuple[int, ...] = (), guides: Callable[..., Guide] | None = None
    ) -> None:
        self.logits, self.dtype, self.eos, self.guides = logits, dtype, eos, guides

    def compare(
        self, prompt: Sequence[int], expected: Sequence[int], found: Sequence[int], sampling: Sampling
    ) -> Difference | None:
        """None for equal texts, else the first difference and what it is."""
        at = first_difference(expected, found)
        if at is None:
            return None
        if at >= min(len(expected), len(found)):
            rest = [text[at] if at < len(text) else None for text in (expected, found)]
            return Difference("divergence", at, rest[0], rest[1], math.inf, 0.0)
        tokens = [*prompt, *expected[:at]]
        shaper = Shaper(sampling, tokens, len(prompt), self.eos, self._guide(sampling, expected[:at]))
        row = self.logits(tokens)
        measure = self._greedy_gap if sampling.greedy else self._drawn_gap
        gap, allowed = measure(shaper, row, expected[at], found[at])
        return Difference("tie" if gap <= allowed else "divergence", at, expected[at], found[at], gap, allowed)

    def _guide(self, sampling: Sampling, output: Sequence[int]) -> Guide | None:
        """Where the texts, equal so far, stand in their constraint."""
        if sampling.constraint is None or self.guides is None:
            return None
        ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.eos)}
        guide = self.guides(sampling.constraint, frozenset(ends))
        for token in output:
            guide.advance(token)
        return guide

    def _greedy_gap(self, shaper: Shaper, row: torch.Tensor, *tokens: int) -> tuple[float, float]:
        """Distance of the worse token's logit from the best one, after penalties and bans."""
        bent = shaper.bend(row[None], lambda _: ())[0].double()
        best = float(bent.max())
        return best - min(float(bent[token]) for token in tokens), margin(best, self.dtype)

    def _drawn_gap(self, shaper: Shaper, row: torch.Tensor, *tokens: int) -> tuple[float, float]:
        """How much higher the worse token's logit would have to be for it to win the race that draws here."""
        p = shaper.probabilities(row[None], lambda _: ())[0].double().cpu()
        rng = CounterRng(shaper.sampling.seed or 0)
        rng.begin(0, len(shaper.tokens))
        scores = (p / times([rng.ahead(Purpose.TARGET, 0)], torch.arange(len(p)))[0]).log()
        gap = float(scores.max()) - min(float(scores[token]) for token in tokens)
        return gap * shaper.sampling.temperature, margin(float(row.max()), self.dtype)


def last_logits(runner: ModelRunner) -> Logits:
    """Logits after a whole text, read anew in one pass through a free slot of the runner's cache."""

    def logits(tokens: Sequence[int]) -> torch.Tensor:
        slot, held = runner.cache.open(tokens)
        try:
            rest = tuple(tokens[held:])
            runner.cache.reserve(slot, len(rest))
            return runner.run([Work(slot, rest, logits=(len(rest) - 1,))])[0].logits[0]
        finally:
            runner.cache.close(slot)

    return logits
