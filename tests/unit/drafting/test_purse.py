"""Who gains goes on, who does not spends a loan and then a small share of the steps, in bursts."""

import pytest

from forerun.drafting.purse import LOAN, SHARE, Purse
from forerun.types import Draft, Outcome, Output, Verdict, Work

CHAIN = Draft.chain((1,) * 8)


def steps(purse, count, accepted):
    """How many of the next steps drafted eight nodes, of which so many came true."""
    drafted = []
    for _ in range(count):
        drafted.append(not purse.rests())
        draft = purse.pay(CHAIN if drafted[-1] else Draft())
        path = tuple(range(accepted)) if drafted[-1] else ()
        purse.settle(Outcome(Work(0, (0,)), Output(None, (), ()), draft, Verdict(path, 0)))
    return drafted


def test_useless_nodes_cost_the_loan_and_the_share():
    price, count = 0.05, 2000
    drafted = steps(Purse(price), count, 0)
    assert sum(drafted) * len(CHAIN) * price <= LOAN + SHARE * count + len(CHAIN) * price
    assert sum(drafted[:50]) < 10
    ends = [at for at in range(1, count) if drafted[at - 1] and not drafted[at]]
    assert len(ends) > 3
    assert sum(drafted) / len(ends) > 5  # tries in a row


def test_who_gains_never_rests():
    assert all(steps(Purse(0.05), 500, 1))


def test_a_text_that_gets_hard_is_noticed_soon():
    purse = Purse(0.05)
    steps(purse, 500, 8)
    assert sum(steps(purse, 200, 0)) < 30


def test_nodes_that_cost_nothing_are_never_spared():
    assert all(steps(Purse(0.0), 500, 0))


@pytest.mark.parametrize(("path", "gained"), [((0, 1), 2), ((0, 1, 9), 2), ((8,), 0)])
def test_only_own_nodes_count(path, gained):
    purse = Purse(0.25)
    purse.rests()
    before = purse.left
    purse.pay(CHAIN)
    purse.settle(Outcome(Work(0, (0,)), Output(None, (), ()), CHAIN, Verdict(path, 0)))
    assert purse.left == pytest.approx(before + gained - 2)
