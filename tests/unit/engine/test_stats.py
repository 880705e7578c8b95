"""Counters: what a turn adds, what is a rate, and the sum over requests."""

import pytest

from forerun.engine.stats import RequestStats
from forerun.types import Emission, Turn

ACCEPTED = Turn((Emission(1, "ngram"), Emission(2, "ngram"), Emission(3, "target")), (0, 1, 2), drafted=4, depth=3)
REFUSED = Turn((Emission(3, "target"),), (0,), drafted=2, depth=2)
PLAIN = Turn((Emission(3, "target"),), (0,))


def counted(*turns):
    stats = RequestStats()
    for turn in turns:
        stats.count(turn, len(turn.emissions))
    return stats


def test_rates_of_three_turns():
    stats = counted(ACCEPTED, REFUSED, PLAIN)
    assert stats.tokens_per_step == pytest.approx(5 / 3)
    assert stats.acceptance_rate == pytest.approx(2 / 6)
    assert stats.acceptance_per_position == pytest.approx((1 / 2, 1 / 2, 0))
    assert stats.sources == {"ngram": 2, "target": 3}


def test_nothing_yet_has_rates_too():
    stats = RequestStats()
    assert (stats.tokens_per_step, stats.acceptance_rate, stats.acceptance_per_position) == (0, 0, ())


def test_the_sum_over_requests_is_that_of_their_turns():
    total = counted(ACCEPTED)
    total.cached, total.preempted = 3, 1
    other = counted(REFUSED, PLAIN)
    other.cached, other.preempted = 4, 2
    total.add(other)
    wanted = counted(ACCEPTED, REFUSED, PLAIN)
    wanted.cached, wanted.preempted = 7, 3
    assert total == wanted


def test_what_comes_after_the_end_of_a_text_is_not_counted_as_tokens():
    stats = RequestStats()
    stats.count(ACCEPTED, 1)
    assert stats.tokens == 1
    assert stats.sources == {"ngram": 1}
