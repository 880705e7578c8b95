"""What a verifier is: a pure function of the draft, the target's distributions and the rng.

It returns the accepted path and one more token. `self` holds options only, and no state.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

from forerun.member import Member
from forerun.rng import Rng
from forerun.types import Draft, Target, Verdict


class Verifier(Member):
    """Judges drafts; batch-first, so that a fused one can judge all requests at once."""

    hidden: tuple[int, ...] = ()  # layers of the target whose hidden states `verify` wants to see; -1 is the last

    @abstractmethod
    def __init__(self, options: Any) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def verify(self, drafts: Sequence[Draft], targets: Sequence[Target], rngs: Sequence[Rng]) -> list[Verdict]:
        """One verdict per draft. `targets[i][node]` is p after that node of draft i; node -1 is the root."""


class SoloVerifier(Verifier):
    """Lifts a rule for one draft."""

    @abstractmethod
    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        """The verdict on one draft; an empty one yields one token of the target."""

    @final
    def verify(self, drafts: Sequence[Draft], targets: Sequence[Target], rngs: Sequence[Rng]) -> list[Verdict]:
        return [self.verify_one(*one) for one in zip(drafts, targets, rngs, strict=True)]
