"""Where others need a team's cores fewer threads come to its runs, and all come back."""

import pytest

from forerun.kernels import native

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
CALM, LATE = 5e-4, 4e-3  # seconds


def opened(size):
    return native.load().Turnout(size)


def test_all_come_while_nobody_is_held_up():
    turnout = opened(4)
    for at in range(50):
        turnout.after(CALM, at)
        assert turnout.now == 4


def absences(turnout, trials, start=100.0, lost=LATE):
    """How long one stays away after each of some trials that fail, each at once when it may come again."""
    found, at = [], start
    for _ in range(trials):
        turnout.after(lost, at)
        away, since = turnout.now, at
        while turnout.now == away and at < since + 3:
            at += 1e-4
            turnout.after(0, at)
        found.append(at - since)
    return found


def test_one_stays_away_for_twice_what_was_lost_and_longer_while_trials_fail():
    found = absences(opened(2), 7)
    assert found == pytest.approx([LATE * times for times in (2, 4, 8, 16, 32, 32, 32)], abs=3e-4)


def test_nobody_stays_away_for_longer_than_a_second():
    assert max(absences(opened(2), 6, lost=0.3)) == pytest.approx(1, abs=1e-3)


def test_a_trial_that_went_well_for_long_begins_anew():
    turnout = opened(2)
    absences(turnout, 5)
    assert absences(turnout, 1, start=500.0) == pytest.approx([2 * LATE], abs=3e-4)


def test_one_at_a_time_of_few_and_an_eighth_of_many_but_never_the_last():
    turnout, found = opened(16), []
    for at in range(100, 120):
        turnout.after(LATE, at)
        found.append(turnout.now)
    assert found == [14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, *[1] * 7]
    turnout.after(0, 1000)
    assert turnout.now == 2
