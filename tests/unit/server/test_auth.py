"""S6: how long a wrong key takes says nothing of the right one."""

import random
from contextlib import suppress
from math import sqrt
from statistics import fmean, variance
from time import perf_counter_ns

from forerun.server.auth import Keys
from forerun.server.refusal import Refusal

COUNT, MOST = 20_000, 4.5  # tries of each kind; Welch's t
RIGHT = "k" * 512
WRONG = "x" + RIGHT[1:], RIGHT[:-1] + "x"  # at the first letter, at the last


class Naive:
    """Stops at the first letter that is wrong."""

    def __init__(self, keys):
        self.key = keys[0]

    def scope(self, authorization):
        given = authorization.removeprefix("Bearer ")
        for a, b in zip(given, self.key, strict=True):
            if a != b:
                raise Refusal(401, "wrong")


def welch(keys):
    """t of the times that two wrong keys take, in turns by lot, without the slowest tenth (others have the machine)."""
    lots = [0, 1] * COUNT
    random.Random(0).shuffle(lots)  # noqa: S311 - an order, not a secret
    times = [], []
    for lot in lots:
        header = f"Bearer {WRONG[lot]}"
        began = perf_counter_ns()
        with suppress(Refusal):
            keys.scope(header)
        times[lot].append(perf_counter_ns() - began)
    cut = sorted(times[0] + times[1])[int(1.8 * COUNT)]
    kept = [[t for t in each if t < cut] for each in times]
    spread = sqrt(sum(variance(each) / len(each) for each in kept))
    return (fmean(kept[0]) - fmean(kept[1])) / spread


def test_the_place_of_a_wrong_letter_takes_no_time():
    for keys in ([RIGHT], ["other", RIGHT, "third"]):
        assert min(abs(welch(Keys(keys))) for _ in range(3)) < MOST  # a busy machine is not so slow every time


def test_the_measurement_sees_a_comparison_that_stops():
    assert min(abs(welch(Naive([RIGHT]))) for _ in range(3)) > MOST
