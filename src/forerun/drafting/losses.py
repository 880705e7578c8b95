"""What drafts have lost, in steps without: a loan, a small share of every step, and what earlier ones brought.

Counted apart for 1, 2 to 3, 4 to 7 requests and so on: what drafts win for one alone is not there to be lost by many.
Does not: know what a step takes, or what a draft does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

LOAN, SHARE = 10.0, 0.004  # steps at first, and of every step, that drafts may have cost beyond what they brought,
FEW = 4  # where so many requests run; with more, whose steps say more at once, as much less
HELD = 2.5  # at most, by one step: it may have been held up
LONGEST = 400  # steps until a trial may say that a loss was bad luck
SAVED = 32.0  # steps won that are remembered: drafts that pay a little have bad luck for a while


@dataclass(eq=False, slots=True)
class Book:
    """Of some number of requests."""

    steps: int = 0
    vain: float = 0.0  # steps
    later: float = 0.0  # the step from which the latest loss is a small share of the time


class Losses:
    """Of all requests."""

    def __init__(self) -> None:
        self.books = defaultdict[int, Book](Book)

    def of(self, requests: int) -> Book:
        """Where so many are counted."""
        return self.books[requests.bit_length()]

    def bearable(self, requests: int) -> bool:
        """Whether drafts may go on as they are."""
        book = self.of(requests)
        return book.vain <= (LOAN + SHARE * book.steps) / _less(requests)

    def trial(self, requests: int, *, again: bool) -> bool:
        """Whether more may be tried than pays; `again`: right after another trial, so that a loss is waited for."""
        book = self.of(requests)
        due = self.bearable(requests) and book.steps >= book.later
        return due or (book.vain <= SHARE * book.steps / _less(requests) and not again)

    def passed(self, requests: int, steps: int) -> None:
        """So many steps later, whether there were drafts in them or not."""
        self.of(requests).steps += steps

    def add(self, requests: int, costs: Sequence[float], tokens: float) -> None:
        """What drafts cost in each of the latest steps, in steps, and how many tokens they brought each request."""
        book, lost = self.of(requests), sum(min(cost, HELD) for cost in costs) - tokens
        saved = SAVED / _less(requests) ** 2  # squared: bad luck of many is seen sooner, and its steps are longer
        book.vain = max(book.vain + lost, -saved)
        book.later = book.steps + min(lost / SHARE, LONGEST) * _less(requests)


def _less(requests: int) -> float:
    """By what loans are divided, and waits multiplied."""
    return max(requests / FEW, 1.0)
