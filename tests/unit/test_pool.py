"""Greedy requests learn together; one that samples learns alone."""

from forerun.pool import Pool
from forerun.rng import CounterRng
from forerun.types import Context, Sampling


def context(temperature):
    return Context(0, [0], 1, Sampling(temperature=temperature), CounterRng(0))


def test_greedy_requests_share_and_others_do_not():
    pool = Pool(dict, shared=True)
    assert pool.of(context(0.0)) is pool.of(context(0.0))
    assert len({id(held) for held in [pool.of(context(t)) for t in (0.0, 0.7, 0.7)]}) == 3


def test_nobody_shares_where_that_is_off():
    pool = Pool(dict, shared=False)
    assert pool.of(context(0.0)) is not pool.of(context(0.0))
