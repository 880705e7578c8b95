"""What drafts lost makes trials wait, for a time, and what they won is there for as many requests as won it."""

from dataclasses import replace

import pytest

from forerun.drafting.losses import BEGUN, FAR, LOAN, OVER, SAVED, SHARE, START, TRUSTED, Losses
from forerun.rng import CounterRng
from forerun.types import Context, Sampling


def test_after_a_trial_that_lost_another_waits_and_after_one_that_won_none_does():
    losses = Losses()
    losses.passed(1, 1000)
    losses.add(1, [2.0], 1.0)
    losses.passed(1, 1)
    assert losses.trial(1, again=False)
    assert not losses.trial(1, again=True)
    losses.passed(1, round(1 / SHARE) - 1)
    assert losses.trial(1, again=True)
    losses.add(1, [1.0], 2.0)
    assert losses.trial(1, again=True)


def test_a_great_loss_is_not_held_against_drafts_forever():
    losses = Losses()
    losses.passed(1, 1000)
    losses.add(1, [2.0] * 4, 0.0)
    assert losses.of(1).vain < LOAN
    losses.passed(1, 300)
    assert not losses.trial(1, again=True)
    losses.passed(1, 100)
    assert losses.trial(1, again=True)


def test_many_requests_lend_less():
    losses = Losses()
    losses.of(4).vain = losses.of(16).vain = LOAN / 2
    assert losses.bearable(4)
    assert not losses.bearable(16)
    poor = Losses()
    poor.passed(16, 1000)
    poor.add(16, [2.0], 1.0)
    poor.passed(16, 999)
    assert poor.bearable(16)
    assert not poor.trial(16, again=True)
    poor.passed(16, 1)
    assert poor.trial(16, again=True)


def test_what_few_have_won_is_not_lost_by_many():
    losses = Losses()
    losses.passed(1, 1000)
    losses.add(1, [0.0] * 100, 100.0)
    assert losses.of(1).vain == -SAVED
    losses.add(16, [2.0] * 2, 0.0)
    assert not losses.bearable(16)
    assert losses.bearable(1)
    losses.add(16, [0.0] * 100, 100.0)
    assert losses.of(31).vain == -SAVED / 16


def test_what_is_lost_before_it_is_seen_is_not_held_against_drafts():
    losses = Losses()
    losses.add(4, [2.0] * 100, 0.0)
    assert losses.of(4).vain == LOAN + OVER
    assert not losses.bearable(4)
    losses.passed(4, round(OVER / SHARE))
    assert losses.bearable(4)


def test_what_it_takes_to_begin_is_what_it_took_lately():
    losses = Losses()
    losses.add(1, [BEGUN + 4, 1.0], 2.0, first=True)
    losses.add(1, [BEGUN + 4, 1.0], 2.0)
    assert losses.begun == BEGUN + 2
    for _ in range(9):
        losses.add(4, [1.0], 1.0, first=True)
    assert 1.0 < losses.begun < 1.01


@pytest.mark.parametrize("size", [1, 16])
def test_drafts_that_have_paid_begin_again_for_less(size):
    batch = [replace(Context(0, [0], 1, Sampling(max_tokens=None), CounterRng(0)), id=i) for i in range(size)]
    losses, reading = Losses(), BEGUN / FAR
    assert losses.start(batch) == pytest.approx(START + reading)
    losses.add(size, [1.0] * 4, 200.0)
    assert losses.start(batch) == pytest.approx(START - TRUSTED + reading)
    losses.add(size, [400.0], 0.0)
    assert losses.start(batch) == pytest.approx(START + reading)
