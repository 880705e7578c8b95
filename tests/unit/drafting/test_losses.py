"""What drafts lost makes trials wait, for a time."""

from forerun.drafting.losses import LOAN, SHARE, Losses


def test_after_a_trial_that_lost_another_waits_and_after_one_that_won_none_does():
    losses = Losses()
    losses.add(1000, [2.0], 1.0, requests=1)
    assert losses.trial(1001, again=False)
    assert not losses.trial(1001, again=True)
    assert losses.trial(1000 + round(1 / SHARE), again=True)
    losses.add(1300, [1.0], 2.0, requests=1)
    assert losses.trial(1301, again=True)


def test_a_great_loss_is_not_held_against_drafts_forever():
    losses = Losses()
    losses.add(1000, [2.0] * 4, 0.0, requests=1)
    assert losses.vain < LOAN
    assert not losses.trial(1300, again=True)
    assert losses.trial(1400, again=True)


def test_what_few_requests_won_is_not_for_many_to_lose():
    losses = Losses()
    losses.add(100, [1.0], 20.0, requests=1)
    losses.add(101, [LOAN], 0.0, requests=1)
    assert losses.vain < -LOAN
    losses.add(102, [1.0], 0.0, requests=2)
    assert losses.vain < -LOAN
    losses.add(103, [1.0], 0.0, requests=16)
    assert losses.vain == 1.0
    losses.add(104, [1.0], 10.0, requests=9)
    losses.add(105, [1.0], 0.0, requests=32)
    assert losses.vain == 1.0 - 9.0 + 1.0
    losses.add(106, [1.0], 0.0, requests=7)
    assert losses.vain == 1.0
