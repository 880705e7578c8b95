"""Where others need a team's cores fewer threads come to its runs, and all come back."""

import pytest

from forerun.kernels import native

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
CALM, TOOK, LATE = 5e-4, 10e-3, 8e-3  # seconds that a run loses, takes, and loses where a thread has no core


class Runs:
    """A clock, and runs that end one after another."""

    def __init__(self, size):
        self.turnout, self.at = native.load().Turnout(size), 100.0

    def run(self, lost, took=TOOK):
        self.at += took
        self.turnout.after(lost, took, self.at)
        return self.turnout.now

    def until_fewer_come(self, lost=LATE):
        coming, since = self.turnout.now, self.at
        while self.run(lost) >= coming:
            assert self.at < since + 3
        return self.at - since

    def until_more_come(self):
        coming, since = self.turnout.now, self.at
        while self.run(0, took=1e-4) <= coming:
            assert self.at < since + 3
        return self.at - since


def test_all_come_while_nobody_is_held_up():
    runs = Runs(4)
    assert all(runs.run(CALM) == 4 for _ in range(200))


def test_waking_up_is_no_reason_to_stay_away():
    runs = Runs(2)
    assert all(runs.run(CALM, took=1.2 * CALM) == 2 for _ in range(2000))


@pytest.mark.parametrize("every", [2, 5, 10])
def test_all_come_where_waiting_now_and_then_costs_less_than_one_thread_less(every):
    runs = Runs(2)
    assert all(runs.run(LATE if i % every == 0 else 0) == 2 for i in range(500))


def test_waiting_for_one_of_many_is_dear():
    runs = Runs(8)  # eight lose a fifth of the time, seven would take a seventh longer
    assert runs.until_fewer_come(lost=TOOK / 5) < 1


def test_one_stays_away_soon_after_others_come():
    runs = Runs(2)
    for _ in range(500):
        runs.run(0)
    assert runs.until_fewer_come() < 0.5


def test_one_stays_away_longer_while_trials_fail():
    runs, found = Runs(2), []
    runs.until_fewer_come()
    runs.until_more_come()
    for _ in range(5):
        assert runs.until_fewer_come() == pytest.approx(TOOK)  # a trial is one run
        found.append(runs.until_more_come())
    assert found == pytest.approx([LATE * times for times in (4, 8, 16, 32, 32)], abs=3e-4)


def test_nobody_stays_away_for_longer_than_a_second():
    runs, found = Runs(2), []
    for _ in range(6):
        runs.until_fewer_come(lost=0.9 * TOOK)
        found.append(runs.until_more_come())
    for _ in range(3):
        assert runs.run(0.3, took=0.4) == 1
        found.append(runs.until_more_come())
    assert max(found) == found[-1] == pytest.approx(1, abs=1e-3)


def test_a_trial_that_went_well_for_long_begins_anew():
    runs = Runs(2)
    for _ in range(5):
        runs.until_fewer_come()
        runs.until_more_come()
    for _ in range(500):
        assert runs.run(0) == 2
    runs.until_fewer_come()
    runs.until_more_come()
    runs.until_fewer_come()
    assert runs.until_more_come() == pytest.approx(4 * LATE, abs=3e-4)


def test_one_at_a_time_of_few_and_an_eighth_of_many_but_never_the_last():
    runs = Runs(16)
    runs.until_fewer_come()
    found = [runs.turnout.now, *(runs.run(LATE) for _ in range(19))]
    assert found == [14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, *[1] * 7]
    runs.at += 10
    assert runs.run(0) == 2
