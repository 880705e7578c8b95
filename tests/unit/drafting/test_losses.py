"""What drafts lost makes trials wait, for a time."""

from forerun.drafting.losses import LOAN, SAVED, SHARE, Losses


def test_after_a_trial_that_lost_another_waits_and_after_one_that_won_none_does():
    losses = Losses()
    losses.add(1000, 1, [2.0], 1.0)
    assert losses.trial(1001, 1, again=False)
    assert not losses.trial(1001, 1, again=True)
    assert losses.trial(1000 + round(1 / SHARE), 1, again=True)
    losses.add(1300, 1, [1.0], 2.0)
    assert losses.trial(1301, 1, again=True)


def test_a_great_loss_is_not_held_against_drafts_forever():
    losses = Losses()
    losses.add(1000, 1, [2.0] * 4, 0.0)
    assert losses.vain < LOAN
    assert not losses.trial(1300, 1, again=True)
    assert losses.trial(1400, 1, again=True)


def test_many_requests_lend_less_and_spend_little_of_what_few_have_won():
    losses = Losses()
    losses.vain = LOAN / 2
    assert losses.bearable(0, 4)
    assert not losses.bearable(0, 16)
    poor = Losses()
    poor.add(1000, 16, [2.0], 1.0)
    assert poor.bearable(1999, 16)
    assert not poor.trial(1999, 16, again=True)
    assert poor.trial(2000, 16, again=True)
    rich = Losses()
    rich.add(1000, 1, [0.0] * 100, 100.0)
    rich.add(1001, 16, [1.0], 1.0)
    assert rich.vain == -SAVED / 16
