"""What passes take now is told from what was measured, by their rows."""

import pytest

from forerun.drafting.passes import Passes, Seen
from forerun.types import Costs

CURVE = Costs((1, 16), (1.0, 2.5))


def test_what_was_measured_holds_until_there_is_news():
    passes = Passes(lambda: CURVE)
    assert [passes.of(rows) for rows in (1, 6, 11, 21)] == pytest.approx([1.0, 1.5, 2.0, 3.0])


def test_rows_that_cost_more_than_was_measured_are_told_from_passes_that_all_do():
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(4, CURVE.of(4), drafts=False))
        passes.learn(Seen(8, 1.6 * CURVE.of(8), drafts=False))
    found = [passes.of(rows) / CURVE.of(rows) for rows in (1, 4, 6, 8, 30)]
    assert found == pytest.approx([1.0, 1.0, 1.3, 1.6, 1.6], rel=0.02)


def test_passes_without_drafts_are_told_from_others_of_their_size():
    """What drafts cost is the difference between the two; a factor for both would leave it as it was measured."""
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(16, 0.8 * CURVE.of(16), drafts=False))
        passes.learn(Seen(28, 1.2 * CURVE.of(28), drafts=True))
    assert passes.of(16) == pytest.approx(0.8 * CURVE.of(16), rel=0.02)
    assert [passes.of(rows) / CURVE.of(rows) for rows in (22, 28)] == pytest.approx([1.0, 1.2], rel=0.02)


def test_a_pass_that_was_held_up_says_little_and_a_machine_that_has_become_slower_is_believed():
    passes = Passes(lambda: CURVE)
    for _ in range(40):
        passes.learn(Seen(1, 1.0, drafts=False))
    passes.learn(Seen(1, 100.0, drafts=False))
    assert passes.of(1) == pytest.approx(1.015, abs=0.001)
    for _ in range(200):
        passes.learn(Seen(1, 2.0, drafts=False))
    assert passes.of(1) == pytest.approx(2.0, rel=0.02)


def test_what_is_not_seen_moves_with_what_is():
    """Drafts that were dear in a bad hour are not dear for ever, though nobody drafts any more."""
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(1, 3.0 * CURVE.of(1), drafts=False))
        passes.learn(Seen(6, 3.6 * CURVE.of(6), drafts=True))
    for _ in range(300):
        passes.learn(Seen(1, CURVE.of(1), drafts=False))
    assert passes.of(1) == pytest.approx(CURVE.of(1), rel=0.02)
    assert passes.of(6) == pytest.approx(1.2 * CURVE.of(6), rel=0.2)


def test_what_is_not_seen_becomes_slower_with_what_is_and_what_is_seen_does_not():
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(1, CURVE.of(1), drafts=False))
        passes.learn(Seen(6, CURVE.of(6), drafts=True))
    for _ in range(200):
        passes.learn(Seen(1, 1.4 * CURVE.of(1), drafts=False))
        passes.learn(Seen(6, CURVE.of(6), drafts=True))
    assert passes.of(6) == pytest.approx(CURVE.of(6), rel=0.02)
    for _ in range(200):
        passes.learn(Seen(6, 1.4 * CURVE.of(6), drafts=True))
    assert passes.of(1) == pytest.approx(1.4 * 1.4 * CURVE.of(1), rel=0.1)


def test_a_pass_that_is_much_shorter_is_believed_at_once():
    """Much can hold one up, and nothing makes one shorter than it is."""
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(6, 3.0 * CURVE.of(6), drafts=True))
    passes.learn(Seen(6, CURVE.of(6), drafts=True))
    assert passes.of(6) <= 2.1 * CURVE.of(6)


def test_the_first_passes_of_a_size_count_only_where_they_are_shorter():
    """They run on cold memory; a size that is seldom run would be thought dear for ever."""
    passes = Passes(lambda: CURVE)
    for seconds in (1.4, 1.5):
        passes.learn(Seen(1, seconds, drafts=False))
    assert passes.of(1) == 1.0
    passes.learn(Seen(1, 0.8, drafts=False))
    assert passes.of(1) == 0.8
    passes.learn(Seen(1, 1.0, drafts=False))
    assert passes.of(1) == pytest.approx(0.9)


def test_costs_are_not_asked_for_before_they_are_needed():
    asked = []
    passes = Passes(lambda: asked.append(1) or CURVE)
    assert not asked
    passes.of(1), passes.of(2), passes.of(1)
    assert asked == [1]


def test_two_sizes_that_become_slower_do_not_make_a_third_slower_twice():
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(1, CURVE.of(1), drafts=False))
        passes.learn(Seen(4, CURVE.of(4), drafts=False))
        passes.learn(Seen(16, CURVE.of(16), drafts=True))
    for _ in range(200):
        passes.learn(Seen(1, 1.4 * CURVE.of(1), drafts=False))
        passes.learn(Seen(4, 1.4 * CURVE.of(4), drafts=False))
    assert passes.of(16) == pytest.approx(1.4 * CURVE.of(16), rel=0.05)


def test_a_few_passes_without_drafts_mend_what_those_with_drafts_made_of_them():
    """They move with those while they are not seen, which became slower for a reason that was theirs alone."""
    passes = Passes(lambda: CURVE)
    passes.learn(*[Seen(1, CURVE.of(1), drafts=False)] * 30, *[Seen(4, CURVE.of(4), drafts=True)] * 30)
    for _ in range(200):
        passes.learn(Seen(4, 1.4 * CURVE.of(4), drafts=True))
    assert passes.of(1) > 1.25 * CURVE.of(1)
    passes.learn(Seen(1, CURVE.of(1), drafts=False, steps=6))
    assert passes.of(1) == pytest.approx(CURVE.of(1), rel=0.1)


def test_no_pass_is_thought_to_take_longer_than_one_of_more_rows():
    """A size that is seen while requests come and go is seen at busy moments, and drafts would seem to save time."""
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(7, 2 * CURVE.of(7), drafts=False))
        passes.learn(Seen(8, CURVE.of(8), drafts=False))
    assert passes.of(7) == pytest.approx(CURVE.of(8), rel=0.02)
    assert passes.of(1) <= passes.of(7)


def test_a_seldom_size_that_was_held_up_does_not_make_all_others_shorter_when_it_no_longer_is():
    """Else they become shorter each time, and plain passes with them, as none takes longer than one of more rows."""
    passes = Passes(lambda: CURVE)
    for _ in range(60):
        passes.learn(Seen(4, CURVE.of(4), drafts=False, steps=6), Seen(2, CURVE.of(2), drafts=False))
        passes.learn(Seen(12, CURVE.of(12), drafts=True))
    for _ in range(40):
        passes.learn(Seen(4, CURVE.of(4), drafts=False, steps=12), Seen(2, 4 * CURVE.of(2), drafts=False, steps=3))
        passes.learn(Seen(4, CURVE.of(4), drafts=False, steps=12), Seen(2, CURVE.of(2), drafts=False, steps=3))
    assert passes.of(12) == pytest.approx(CURVE.of(12), rel=0.25)
    assert passes.of(4) == pytest.approx(CURVE.of(4), rel=0.05)
