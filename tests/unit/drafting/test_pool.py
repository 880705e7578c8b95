"""Requests of a scope learn together, greedy or not; those of two scopes never."""

from forerun.drafting.pool import SCOPES, Pool
from forerun.rng import CounterRng
from forerun.types import Context, Sampling


def context(temperature, scope=""):
    return Context(0, [0], 1, Sampling(temperature=temperature), CounterRng(0), scope=scope)


def test_requests_of_a_scope_share_whether_they_are_greedy_or_not():
    pool = Pool(dict, shared=True)
    assert len({id(held) for held in [pool.of(context(t)) for t in (0.0, 0.7, 0.7)]}) == 1


def test_nobody_shares_where_that_is_off():
    pool = Pool(dict, shared=False)
    assert pool.of(context(0.0)) is not pool.of(context(0.0))


def test_scopes_do_not_share_and_the_oldest_goes():
    pool = Pool(dict, shared=True)
    mine, other = pool.of(context(0.0, "a")), pool.of(context(0.0, "b"))
    assert mine is not other
    for number in range(SCOPES - 2):
        pool.of(context(0.0, str(number)))
    assert pool.of(context(0.0, "a")) is mine
    pool.of(context(0.0, "one more"))
    assert pool.of(context(0.0, "a")) is mine
    assert pool.of(context(0.0, "b")) is not other
