"""What drafts have lost, in steps without: a loan, a small share of every step, and what earlier ones brought.

Counted apart for 1, 2 to 3, 4 to 7 requests and so on: what drafts win for one alone is not there to be lost by many.
Also how many steps it takes to begin with them, as texts are read that the drafter has not read.
Does not: know what a step takes, or what a draft does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.types import Context

LOAN, SHARE = 10.0, 0.004  # steps at first, and of every step, that drafts may have cost beyond what they brought,
FEW = 4  # where so many requests run; with more, whose steps say more at once, as much less
LONGEST = 400  # steps until a trial may say that a loss was bad luck
OVER = 2.0  # steps that are held against drafts for as long as it takes; what they lose before it is seen is not
SAVED = 32.0  # steps won that are remembered: drafts that pay a little have bad luck for a while
BEGUN = 2.0  # steps that it takes to begin, until it is known
START = 1.01  # times plain's tokens per second, at least, are to be expected of drafts that have been begun with,
TRUSTED = 0.05  # as much less where earlier ones have won all the steps that are remembered
FAR = 256  # tokens that a text may have left, of those that are counted on


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
        self.begun = BEGUN

    def of(self, requests: int) -> Book:
        """Where so many are counted."""
        return self.books[requests.bit_length()]

    def bearable(self, requests: int) -> bool:
        """Whether drafts may go on as they are."""
        return self.of(requests).vain <= self._bound(requests)

    def trial(self, requests: int, *, again: bool) -> bool:
        """Whether more may be tried than pays; `again`: right after another trial, so that a loss is waited for."""
        book = self.of(requests)
        due = self.bearable(requests) and book.steps >= book.later
        return due or (book.vain <= SHARE * book.steps / _less(requests) and not again)

    def passed(self, requests: int, steps: int) -> None:
        """So many steps later, whether there were drafts in them or not."""
        self.of(requests).steps += steps

    def start(self, batch: Sequence[Context]) -> float:
        """Times plain's tokens per second, at least, are to be expected of drafts of these texts that begin.

        They have to earn what it takes to read what was written meanwhile, before the texts end. Texts differ: a few
        that do not pay say little of the next ones where many have paid.
        """
        won = min(max(-self.of(len(batch)).vain / _saved(len(batch)), 0.0), 1.0)
        return START - TRUSTED * won + self.begun * len(batch) / sum(map(_left, batch))

    def _bound(self, requests: int) -> float:
        """Steps that drafts may have cost beyond what they brought."""
        return (LOAN + SHARE * self.of(requests).steps) / _less(requests)

    def add(self, requests: int, costs: Sequence[float], tokens: float, *, first: bool = False) -> None:
        """What drafts cost in each of the latest steps, in steps, and how many tokens they brought each request.

        `first`: they began with these, so that the first of them says what that takes.
        """
        if first:
            self.begun += (costs[0] - self.begun) / 2
        book, lost = self.of(requests), sum(costs) - tokens
        book.vain = min(max(book.vain + lost, -_saved(requests)), self._bound(requests) + OVER / _less(requests))
        book.later = book.steps + min(lost / SHARE, LONGEST) * _less(requests)


def _left(context: Context) -> int:
    """How many tokens a text may still get, at least one."""
    most, written = context.sampling.max_tokens, len(context.tokens) - context.prompt_length
    return FAR if most is None else min(max(most - written, 1), FAR)


def _less(requests: int) -> float:
    """By what loans are divided, and waits multiplied."""
    return max(requests / FEW, 1.0)


def _saved(requests: int) -> float:
    """Steps won that are remembered; divided twice: bad luck of many is seen sooner, and its steps are longer."""
    return SAVED / _less(requests) ** 2
