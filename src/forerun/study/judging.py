"""The expected number of tokens that a verifier accepts of one draft: all its decisions, each with its chance.

Does not: tell apart tokens that were not drafted; what follows them is the same.
"""

import numpy as np

from forerun.rng import CounterRng, Purpose
from forerun.testing.exhaustive import ExhaustiveRng, Script
from forerun.types import Dist, Draft, Floats, Target
from forerun.verifiers.contract import Verifier

_ELSE = -1  # any token that was not drafted there


class Decisions(ExhaustiveRng):
    """One run. A drawn token is a decision only if something is decided after it."""

    def __init__(self, script: Script, draft: Draft) -> None:
        super().__init__(script)
        self.draft = draft
        self._open: tuple[Floats, tuple[Purpose, int, int]] | None = None

    def categorical(self, p: Dist, purpose: Purpose, depth: int, index: int = 0) -> int:
        self._settle()
        below = {token for token, at in zip(self.draft.tokens, self.draft.depths, strict=True) if at == depth + 1}
        tokens = [token for token in sorted(below) if p.prob(token) > 0]
        chances = np.array([p.prob(token) for token in tokens])
        chances = np.append(chances, max(0.0, 1 - chances.sum()))
        key = (purpose, depth, index)
        if len(self.taken) < len(self.script):
            chosen = super()._choose(chances, key)
        else:
            self._open, chosen = (chances, key), 0
        return [*tokens, _ELSE][chosen]

    def _choose(self, chances: Floats, key: tuple[Purpose, int, int]) -> int:
        self._settle()
        return super()._choose(chances, key)

    def _settle(self) -> None:
        """The last drawn token mattered: count its chance, and come back for the others."""
        if self._open is not None:
            last, self._open = self._open, None
            super()._choose(*last)


def expected(verifier: Verifier, draft: Draft, target: Target) -> float:
    """Accepted tokens of this draft on average, the bonus token not included."""
    total, todo = 0.0, list[Script]([()])
    while todo:
        run = Decisions(todo.pop(), draft)
        total += len(verifier.verify([draft], [target], [run])[0].path) * run.weight
        todo += run.forks
    return total


def seeded(verifier: Verifier, draft: Draft, target: Target, seed: int) -> int:
    """Accepted tokens of this draft, judged once."""
    rng = CounterRng(seed)
    rng.begin(1, 0)  # the draft was drawn in step 0
    return len(verifier.verify([draft], [target], [rng])[0].path)
