"""How much a drafter may spend on nodes: what its accepted tokens saved, a loan, and a small share of every step.

A node costs `price` steps, an accepted token saves one. Who has spent everything rests until the share has paid the
loan back, and then may try for several steps in a row, which guesses that improve from step to step need.
Does not: know what a pass costs: the price is given, because a text must not depend on a clock.
"""

from dataclasses import dataclass

from forerun.types import Draft, Outcome

LOAN = 3.0  # steps
SHARE = 0.01  # of every step
_FULL = 8.0  # steps saved that are remembered, so that a text that changes is noticed


@dataclass(eq=False, slots=True)
class Purse:
    """One request's."""

    price: float  # steps that a node costs; 0: never rest
    left: float = LOAN
    resting: bool = False
    nodes: int = 0  # of the draft that is not judged yet

    def rests(self) -> bool:
        """Whether nothing is to be drafted in this step; asked once in each."""
        if self.price == 0:
            return False
        self.left = min(self.left + SHARE, _FULL)
        self.resting = self.left < (LOAN if self.resting else 0)
        return self.resting

    def pay(self, draft: Draft) -> Draft:
        """The draft is proposed."""
        self.nodes = len(draft)
        return draft

    def settle(self, outcome: Outcome) -> None:
        """It was judged; of the outcome's nodes the first are its own."""
        if outcome.verdict is not None:
            verified = min(self.nodes, len(outcome.draft or ()))
            self.left += sum(node < verified for node in outcome.verdict.path) - self.price * verified
        self.nodes = 0
