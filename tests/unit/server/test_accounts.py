"""Accounts: what keys used adds up to what the engine did, and a key gets what its limits say and no more."""

import asyncio
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import LLM
from forerun.engine.stats import RequestStats
from forerun.models.toy import ToyModel
from forerun.server.accounts import Accounts
from forerun.server.limits import Admission
from forerun.server.loop import Ask, EngineLoop
from forerun.server.metrics import Metrics
from forerun.server.refusal import Refusal
from forerun.types import Sampling, salted


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_what_keys_used_is_what_the_engine_did():
    """S17: tokens exactly, and times as the requests' own books have them; aborted requests too."""
    llm = LLM(ToyModel(4), threads=1, profiles="off", drafter="ngram:min_match=1", max_requests=2, cache="paged")
    accounts, metrics, ends = Accounts(), Metrics("a", 64), RequestStats()

    def observe(ticket, index, event):
        accounts.observe(ticket, index, event)
        metrics.observe(ticket, index, event)
        if event.finish_reason is not None:
            ends.add(event.stats)

    async def main():
        loop = EngineLoop(llm.engine, observe)
        loop.start()
        tickets = [
            await loop.submit(
                [Ask([0, 1, 2, 3] * (1 + i), Sampling(seed=i, max_tokens=20), salted("xyz"[i % 3], f"{i}"))] * 2
            )
            for i in range(6)
        ]
        await tickets[0].read()
        loop.leave(tickets[0])
        for ticket in tickets[1:]:
            ends = 0
            while ends < len(ticket.asks):
                ends += sum(event.finish_reason is not None for _, event in await ticket.read())
        await loop.call(lambda _: None)
        await loop.stop()

    asyncio.run(main())
    each = [accounts.usage(key) for key in "xyz"]
    total = {name: sum(usage[name] for usage in each) for name in each[0]}
    counted = {m.name.removeprefix("a:"): m.samples[0].value for m in metrics.registry.collect() if m.samples}
    assert total["completion_tokens"] == ends.tokens == counted["generation_tokens"] > 0
    assert total["prompt_tokens"] == counted["prompt_tokens"] > 0
    assert total["cached_tokens"] == ends.cached
    assert total["kv_token_seconds"] == pytest.approx(ends.held)
    assert total["queue_seconds"] == pytest.approx(ends.queued)
    assert min(usage["kv_token_seconds"] for usage in each) > 0
    assert total["requests"] == 12


def test_time_in_the_queue_and_in_the_cache_are_counted_on_the_engines_clock():
    """One slot and a clock that only steps move: the second request waits for exactly as long as the first runs."""
    llm, clock = LLM(ToyModel(4), threads=1, profiles="off", drafter="none", max_requests=1), Clock()
    llm.engine.clock = clock
    ends = {}
    for seed in range(2):
        llm.engine.add([0, 1], Sampling(seed=seed, max_tokens=3))
    while llm.engine.busy:
        clock.now += 1
        for event in llm.engine.step():
            if event.finish_reason is not None:
                ends[event.request] = event.stats
    assert [ends[i].queued for i in range(2)] == [1.0, 4.0]  # steps 1-3 are the first one's, 4-6 the second's
    assert [ends[i].held for i in range(2)] == [2.0 + 3.0, 2.0 + 3.0]  # a prompt of two, then one entry more


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 30), st.integers(1, 40))))
def test_nobody_gets_more_than_the_limit(moves):
    """In any time t a key gets at most the limit and what fills up in t, plus one request that overdrew nothing."""
    clock, given_ = Clock(), {"a": 0, "b": 0}
    accounts = Accounts(tokens=30, clock=clock)
    for key, pause, count in moves:
        clock.now += pause
        asks = [Ask([0] * count, Sampling(), key)]
        try:
            accounts.ask(key, asks)
        except Refusal as problem:
            clock.now += problem.retry_after or 0  # whoever waits as told gets in
            accounts.ask(key, asks)
        given_[key] += count
        assert given_[key] <= 30 + clock.now / 2 + 10 + 1e-6


def test_what_is_said_is_what_holds():
    """`remaining` requests pass and not one more; after `reset` all are there again. Keys do not share."""
    clock = Clock()
    accounts = Accounts(requests=3, clock=clock)
    for left in (2, 1, 0):
        accounts.arrive("a")
        assert accounts.headers("a") == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": str(left),
            "x-ratelimit-reset-requests": f"{20 * (3 - left):.3f}s",
        }
    with pytest.raises(Refusal) as problem:
        accounts.arrive("a")
    assert (problem.value.status, problem.value.retry_after) == (429, 20)
    accounts.arrive("b")
    clock.now += 20
    accounts.arrive("a")
    clock.now += 60
    assert accounts.headers("a")["x-ratelimit-remaining-requests"] == "3"
    assert not Accounts().headers("a")


def steps_until_another_key_is_served(scheduler, *, flood, inside=None):
    """A key's requests, each with its own salt, fill everything; how many steps another's takes to its first token."""
    llm = LLM(ToyModel(4), threads=1, profiles="off", drafter="none", scheduler=scheduler, max_requests=2)
    admission = Admission(1000, inside or 1000)
    seats = [admission.seats("flood", 1) for _ in range(flood)]  # they stay inside as long as this list lives
    for seed in range(flood):
        try:
            seats[seed].__enter__()
        except Refusal:
            break
        llm.engine.add([0, 1], Sampling(seed=seed, max_tokens=10), salted("flood", f"{seed}"))
    for _ in range(3):
        llm.engine.step()
    number = llm.engine.add([0, 1], Sampling(seed=1, max_tokens=10), "other")
    for count in range(1, 10_000):
        if any(event.request == number and event.emissions for event in llm.engine.step()):
            return count
    raise AssertionError


def test_a_flood_of_one_key_delays_another_by_one_text_at_most():
    """S18, in steps: a slot of the flood's ends within 10, and then the other key is next."""
    assert steps_until_another_key_is_served("fair", flood=0) == 1
    assert steps_until_another_key_is_served("fair", flood=20) <= 11
    assert steps_until_another_key_is_served("fair", flood=200) <= 11
    assert steps_until_another_key_is_served("fcfs", flood=200) > 900  # what it is against
    assert steps_until_another_key_is_served("fcfs", flood=200, inside=1) == 1  # --max-per-key below the slots


def test_the_longest_wait_is_what_the_client_is_told():
    accounts = Accounts(tokens=60, clock=(clock := Clock()))
    accounts.ask("a", [Ask([0] * 60, Sampling(), "a")])
    with pytest.raises(Refusal) as problem:
        accounts.ask("a", [Ask([0] * 600, Sampling(), "a")])  # more than it can ever have: it gets in when all is there
    assert problem.value.retry_after == ceil(60)
    clock.now += 60
    accounts.ask("a", [Ask([0] * 600, Sampling(), "a")])
    assert accounts.headers("a")["x-ratelimit-remaining-tokens"] == "0"
    assert accounts.headers("a")["x-ratelimit-reset-tokens"] == "600.000s"
