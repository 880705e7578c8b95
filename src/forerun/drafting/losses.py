"""What drafts have lost, in steps without: a loan, a small share of every step, and what earlier ones brought.

Does not: know what a step takes, or what a draft does.
"""

from collections.abc import Sequence

LOAN, SHARE = 10.0, 0.004  # steps at first, and of every step, that drafts may have cost beyond what they brought,
FEW = 4  # where so many requests run; with more, whose steps say more at once, as much less
HELD = 2.5  # at most, by one step: it may have been held up
LONGEST = 400  # steps until a trial may say that a loss was bad luck
SAVED = 32.0  # steps won that are remembered: drafts that pay a little have bad luck for a while


class Losses:
    """Of all requests; steps are counted by whoever asks."""

    def __init__(self) -> None:
        self.vain = 0.0  # steps
        self.later = 0.0  # the step from which the latest loss is a small share of the time

    def bearable(self, steps: int, requests: int) -> bool:
        """Whether drafts may go on as they are."""
        return self.vain <= (LOAN + SHARE * steps) / _less(requests)

    def trial(self, steps: int, requests: int, *, again: bool) -> bool:
        """Whether more may be tried than pays; `again`: right after another trial, so that a loss is waited for."""
        due = self.bearable(steps, requests) and steps >= self.later
        return due or (self.vain <= SHARE * steps / _less(requests) and not again)

    def add(self, steps: int, requests: int, costs: Sequence[float], tokens: float) -> None:
        """What drafts cost in each of the latest steps, in steps, and how many tokens they brought each request."""
        lost = sum(min(cost, HELD) for cost in costs) - tokens
        saved = SAVED / _less(requests) ** 2  # squared: the steps that few have won are shorter as well
        self.vain = max(self.vain + lost, -saved)
        self.later = steps + min(lost / SHARE, LONGEST) * _less(requests)


def _less(requests: int) -> float:
    """By what loans are divided, and waits multiplied."""
    return max(requests / FEW, 1.0)
