"""What drafts have cost beyond what they brought, in steps of plain decoding, and how much of it they may.

They may go on as they are while that is no more than a loan and a small share of all steps, and be tried where it is no
more than the share, or where the share has paid for the latest. What they saved counts for some steps.
Does not: know what a step costs; whoever asks says so.
"""

from dataclasses import dataclass

SHARE, LOAN = 0.005, 10.0  # of every step, and steps at first, that drafts may have cost beyond what they brought,
HELD_UP = 2.5  # at most, by one step: it may have been held up
SAVED = 32.0  # steps that are remembered: drafts that pay a little have bad luck for a while


@dataclass(eq=False, slots=True)
class Debt:
    """Of all requests together."""

    lost: float = 0.0  # steps
    step: int = 0  # this one; to be told
    later: float = 0.0  # the step from which the latest drafts' loss is a small share of the time

    @property
    def solvent(self) -> bool:
        """Whether drafts may go on as they are."""
        return self.lost <= LOAN + SHARE * self.step

    @property
    def small(self) -> bool:
        """Whether there may be a trial."""
        return self.lost <= SHARE * self.step or (self.solvent and self.step >= self.later)

    def charge(self, steps: float, tokens: float) -> None:
        """What drafts of a step cost, in steps without, and how many tokens they brought each request."""
        self.lost = max(self.lost + steps - tokens, -SAVED)

    def account(self, steps: float, tokens: float) -> None:
        """The same where it was measured, of this step."""
        steps = min(steps, HELD_UP)
        self.charge(steps, tokens)
        self.later = self.step + (steps - tokens) / SHARE
