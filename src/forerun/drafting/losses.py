"""What drafts have lost, in steps without: a loan, a small share of every step, and what earlier ones brought.

Does not: know what a step takes, or what a draft does.
"""

LOAN, SHARE = 10.0, 0.004  # steps at first, and of every step, that drafts may have cost beyond what they brought,
HELD = 2.5  # at most, by one step: it may have been held up
SAVED = 32.0  # steps won that are remembered: drafts that pay a little have bad luck for a while


class Losses:
    """Of all requests; steps are counted by whoever asks."""

    def __init__(self) -> None:
        self.vain = 0.0  # steps
        self.later = 0.0  # the step from which the latest loss is a small share of the time

    def bearable(self, steps: int) -> bool:
        """Whether drafts may go on as they are."""
        return self.vain <= LOAN + SHARE * steps

    def trial(self, steps: int) -> bool:
        """Whether more may be tried than pays."""
        return self.vain <= SHARE * steps or (self.bearable(steps) and steps >= self.later)

    def add(self, cost: float, tokens: float) -> None:
        """What a step's drafts cost, in steps, and how many tokens they brought each request."""
        self.vain = max(self.vain + cost - tokens, -SAVED)

    def looked(self, steps: int, cost: float, tokens: float) -> None:
        """The same of a step whose time was measured."""
        lost = min(cost, HELD)
        self.add(lost, tokens)
        self.later = steps + (lost - tokens) / SHARE
