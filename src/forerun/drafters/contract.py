"""What a drafter is: it guesses a token tree for every request at once, and sees what became of it.

State is per request: `start` returns it, the engine keeps it in the `Context`, `stop` ends it. `self` holds options
and what all requests share (weights, a store). A drafter that raises, hangs or returns nonsense costs its draft,
never the request.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, final

from forerun.member import Member
from forerun.types import Context, Draft, Outcome, Setup


class Drafter(Member):
    """Makes drafts; batch-first."""

    hidden: tuple[int, ...] = ()  # layers of the target whose hidden states `observe` wants to see

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @property
    def listens(self) -> bool:
        """Whether drafts go by what `observe` is shown, and not by tokens alone."""
        return type(self).observe is not Drafter.observe

    @property
    def watches(self) -> bool:
        """Whether `observe` must be shown steps in which nobody is asked for a draft, too."""
        return self.listens

    def start(self, context: Context) -> Any:  # noqa: ANN401 - whatever the drafter needs per request
        """A new request; what this returns is `context.state` from now on."""
        return None

    @abstractmethod
    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        """One draft per request, of at most budgets[i] nodes; an empty one is always allowed."""

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        """What became of the drafts. `context.tokens` still ends before the verdict's tokens.

        The outcome's draft is what was verified: a planner may have cut it (`Draft.only`), the rest in the same order.
        The outputs hold the logits, and the hidden states asked for, of every node, the rejected ones too.
        """

    def pause(self, context: Context) -> None:
        """The request lost its place for a while: give back what is scarce, such as a slot of a model's cache."""

    def resume(self, context: Context) -> None:
        """It has a place again: take what `pause` gave back."""

    def stop(self, context: Context) -> None:
        """The request ended, perhaps while it was paused; give back what `start` took."""


class SoloDrafter(Drafter):
    """Lifts a drafter that looks at one request at a time."""

    @abstractmethod
    def propose_one(self, context: Context, budget: int) -> Draft:
        """A draft of at most `budget` nodes for one request."""

    @final
    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        return [self.propose_one(context, budget) for context, budget in zip(batch, budgets, strict=True)]
