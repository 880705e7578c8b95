"""What a verifier is: a pure function of the draft, the target's distributions and the rng.

It returns the accepted path and one more token. `self` holds options only, and no state.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from forerun.member import Member
from forerun.rng import Purpose, Rng
from forerun.types import Dist, Draft, Floats, Target, Verdict


class Verifier(Member):
    """Judges drafts; batch-first, so that a fused one can judge all requests at once."""

    hidden: tuple[int, ...] = ()  # layers of the target whose hidden states `verify` wants to see; -1 is the last

    @abstractmethod
    def __init__(self, options: Any) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def verify(self, drafts: Sequence[Draft], targets: Sequence[Target], rngs: Sequence[Rng]) -> list[Verdict]:
        """One verdict per draft. `targets[i][node]` is p after that node of draft i; node -1 is the root."""

    def acceptance(self, p: Floats, q: Floats, count: int) -> float | None:
        """Probability that one of `count` tokens drawn i.i.d. from q is accepted; None where no formula gives it."""
        return None


class SoloVerifier(Verifier):
    """Lifts a rule for one draft."""

    @abstractmethod
    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        """The verdict on one draft; an empty one yields one token of the target."""

    @final
    def verify(self, drafts: Sequence[Draft], targets: Sequence[Target], rngs: Sequence[Rng]) -> list[Verdict]:
        return [self.verify_one(*one) for one in zip(drafts, targets, rngs, strict=True)]


@dataclass(frozen=True, slots=True)
class Siblings:
    """Drafted continuations of one node, in the order in which they are to be judged; there may be none."""

    draft: Draft
    nodes: tuple[int, ...]
    depth: int  # of their parent: tokens between the last committed one and them
    rng: Rng

    def accepts(self, node: int, chance: float) -> bool:
        """Decide, once per node. Other decisions of the group take numbers from `len(draft)` on."""
        return self.rng.bernoulli(chance, Purpose.ACCEPT, self.depth, node)

    @property
    def shared(self) -> Dist | None:
        """The very distribution that all of them, at least two, were drawn from: they are i.i.d."""
        if self.draft.q is None or len(self.nodes) < 2:  # noqa: PLR2004 - one has nobody to share with
            return None
        q = self.draft.q[self.nodes[0]]
        return q if all(self.draft.q[node] is q for node in self.nodes) else None


Judged = tuple[int | None, Dist]  # the accepted sibling and its parent's p; or none, and what is left of that p


class SiblingVerifier(SoloVerifier):
    """Lifts a rule for one group of siblings: walks from the root, and judges the children of what it accepted."""

    @abstractmethod
    def judge(self, p: Dist, siblings: Siblings) -> Judged:
        """The accepted sibling if any; otherwise what the next token is to be drawn from."""

    @final
    def verify_one(self, draft: Draft, target: Target, rng: Rng) -> Verdict:
        node: int = -1
        path: tuple[int, ...] = ()
        while True:
            child, p = self.judge(target[node], Siblings(draft, draft.children(node), len(path), rng))
            if child is None:
                return Verdict(path, rng.categorical(p, Purpose.TARGET, len(path)))
            node, path = child, (*path, child)
