"""Whether drafts are faster, by the clock: a dozen steps with them beside a dozen without, pair by pair.

What steps cost is learnt in different seconds, between which a shared machine changes by half. Two stretches that
follow on each other meet the same machine, so their ratio says what drafts are worth there, whoever is to blame.
Pairs count for as many requests as they had, and the less for others.
Does not: know how long drafts should be, or tell one request from another.
"""

from collections import deque
from collections.abc import Collection
from math import log, log2, sqrt
from typing import NamedTuple

LENGTH, SKIPPED = 12, 2  # steps of a stretch; before it, since who has rested has more to read
STRETCH, WHOLE = SKIPPED + LENGTH, SKIPPED + 2 * LENGTH  # with a pair at one end, and at both
PAIRS = 64  # that are remembered
LIKE = 1.0  # pairs with twice as many requests, or half, count for nothing
NOISE, KNOWN = 0.2, 2.0  # of one pair's ratio, as is thought at first, and how many pairs that thought weighs
OPINION = 32.0  # pairs that an opinion weighs with one request; with n, by n^2 less, but one:
LEAST = 2.0
SURE = 1.25  # standard errors from nothing
EVIDENCE = 0.5  # of what is known, at most, is opinion where the clock overrules what drafts seem to have lost
CLOSE = 0.025  # of a standard error: closer is not looked at
EACH, VAIN = 4, 8  # steps for every pair until the next look, where nobody is sure, and for every look without one
SHARE = 0.002  # of all tokens may looks at the other side cost
SHORTEST = 1e-9  # seconds, where a clock stands still
FEWEST, MOST, NEVER = 64, 4096, 2**62  # steps between them


class Pair(NamedTuple):
    """Two stretches that follow on each other."""

    requests: float  # log2
    ratio: float  # logarithm of tokens per second with drafts over those without


class Verdict(NamedTuple):
    """Of one decision."""

    pays: bool
    other: bool = False  # whether to do now what does not pay, to see it
    steps: int = MOST  # until it is to be asked again, at the latest

    @property
    def drafts(self) -> bool:
        """Whether to draft now."""
        return self.pays is not self.other


class Step(NamedTuple):
    """One, in which nobody's prompt was read."""

    requests: int
    tokens: int
    seconds: float


class Stretch(NamedTuple):
    """Steps that follow on each other, all with drafts or all without."""

    requests: float  # in each, on average
    speed: float  # tokens of each per second


class Duels:
    """Of all steps, in their order."""

    def __init__(self) -> None:
        self.pairs = deque[Pair](maxlen=PAIRS)
        self.drafts, self.pays, self.past, self.next = False, False, 0, NEVER
        self.patience = FEWEST  # steps with drafts: at first it is opinions that are sure
        self.looking, self.vain = False, 0  # at the other side; looks since the latest pair
        self.latest = deque[Step](maxlen=LENGTH)
        self.before: Stretch | None = None

    def add(self, drafts: bool, *step: *tuple[int, int, float]) -> None:  # noqa: FBT001
        """One step: its requests, tokens and seconds."""
        if drafts != self.drafts:
            self.before = _stretch(self.latest) if len(self.latest) == LENGTH else None
            self.drafts, self.past = drafts, 0
            self.latest.clear()
        self.past += 1
        if self.past <= SKIPPED:
            return
        self.latest.append(Step(*step))
        if self.past == STRETCH and self.before is not None:
            now, before, self.vain = _stretch(self.latest), self.before, 0
            ratio = log(now.speed / before.speed)
            self.pairs.append(Pair(log2((now.requests + before.requests) / 2), ratio if drafts else -ratio))

    def lead(self, requests: int, opinion: float) -> tuple[float, float, float, float]:
        """Logarithm of what drafts are worth, its standard error, the opinion's share in it, and how many pairs."""
        at = log2(requests)
        near = [(1 - abs(pair.requests - at) / LIKE, pair.ratio) for pair in self.pairs]
        near = [one for one in near if one[0] > 0]
        count = sum(share for share, _ in near)
        weight = max(OPINION / requests**2, LEAST)
        total = sum(share * ratio for share, ratio in near)
        mean = (total + weight * opinion) / (count + weight)
        own = total / count if count else 0.0
        spread = sum(share * (ratio - own) ** 2 for share, ratio in near) + KNOWN * NOISE**2
        return mean, sqrt(spread / (count + KNOWN) / (count + weight)), weight / (count + weight), count

    def judge(self, steps: int, requests: int, opinion: float, edge: float, *, bearable: bool) -> Verdict:
        """Whether drafts pay, and what to do now.

        `opinion` is the logarithm of what they are thought to be worth, `edge` of what they must be by it alone;
        `bearable`: whether they have not lost too much lately.
        """
        lead, error, weight, known = self.lead(requests, opinion)
        edge *= weight
        unsure = abs(lead) < SURE * error and error > CLOSE
        pays = lead > edge and (bearable or (lead > 0 and not unsure and weight < EVIDENCE))
        most = self.patience if pays else MOST
        pause = int(
            EACH * (known + VAIN * self.vain) if unsure else min(max(STRETCH * abs(lead) / SHARE, FEWEST), most)
        )
        self.next = min(self.next if pays is self.pays else NEVER, steps + pause)
        self.pays = pays
        runs = self.drafts is pays
        if not runs and self.looking and self.past < STRETCH:  # who reads prompts takes longer
            self.looking = False
            return Verdict(pays, other=True, steps=STRETCH - self.past)
        if not (pays or bearable):
            return Verdict(pays)
        if not runs:
            return Verdict(pays, steps=max(self.next - steps, STRETCH))
        if steps < self.next or self.past < WHOLE:
            return Verdict(pays, steps=max(self.next - steps, WHOLE - self.past))
        self.next, self.patience = steps + pause, min((2 if pays else 1) * self.patience, MOST)
        self.looking, self.vain = True, self.vain + 1
        return Verdict(pays, other=True, steps=STRETCH)


def _stretch(steps: Collection[Step]) -> Stretch:
    """All but the longest, which may have been held up."""
    requests, tokens, seconds = map(sum, zip(*sorted(steps, key=_seconds)[:-1], strict=True))
    return Stretch(requests / (len(steps) - 1), tokens / requests * (len(steps) - 1) / max(seconds, SHORTEST))


def _seconds(step: Step) -> float:
    return step.seconds
