"""The loop: limits, contention, aborts, shared prefixes, and a pass that fails."""

import gc
import threading
import time
from dataclasses import replace

import pytest

from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.testing import Ask, BushyDrafter, Toy, distance, outcomes
from forerun.types import Sampling

LONG = "draft-model:model=toy:3:5,depth=6"
GREEDY = Sampling(temperature=0, max_tokens=12)
MODEL = ToyModel(5, 3, context_length=64)


def toy(**members):
    return Toy(**{"drafter": "draft-model:model=toy:9:5,depth=3", "model": MODEL, **members})


def asks(count, length=9):
    return [Ask(tuple((i * 7 + j) % 5 for j in range(length + i)), replace(GREEDY, seed=i)) for i in range(count)]


def alone(ask):
    return toy().plain().build().write([ask])[0]


@pytest.mark.parametrize("cache", ["paged:block_size=4,blocks=12", "paged:block_size=4,blocks=12,prefix=false"])
def test_requests_that_do_not_fit_together_all_finish_with_their_own_text(cache):
    rig = toy(cache=cache).build()
    together = rig.write(asks(6))
    assert rig.engine.stats.preemptions > 0, "the pool is large enough for everybody; the test shows nothing"
    assert [t.tokens for t in together] == [alone(ask).tokens for ask in asks(6)]
    rig.engine.cache.check()
    assert rig.engine.cache.free() == rig.rooms[0]


def test_a_request_larger_than_the_whole_pool_ends_with_what_fits():
    rig = toy(cache="paged:block_size=4,blocks=4").build()
    text = rig.write([Ask((0, 1, 2), replace(GREEDY, max_tokens=40))])[0]
    assert text.finish_reason == "length"
    assert 0 < len(text.tokens) < 40
    assert text.tokens == alone(Ask((0, 1, 2), replace(GREEDY, max_tokens=40))).tokens[: len(text.tokens)]


@pytest.mark.parametrize("room", [1, 3, 7])
def test_a_prompt_read_in_chunks_yields_the_same_text(room):
    rig = toy().resized(max_step_tokens=room).build()
    assert [t.tokens for t in rig.write(asks(3))] == [alone(ask).tokens for ask in asks(3)]


def test_a_planner_hears_of_no_step_in_which_nobody_wrote():
    rig, heard = toy().resized(max_step_tokens=3).build(), []
    rig.engine.members.planner.observe = lambda batch, *_: heard.append(len(batch))
    rig.write(asks(1))
    assert heard
    assert min(heard) == 1
    assert len(heard) == rig.engine.stats.steps - 2, "of a prompt of 9 tokens the last step writes"


def test_what_a_planner_thinks_is_not_taken_for_what_a_step_takes():
    rig, heard, now = toy().build(), list[float](), [0.0]
    rig.engine.clock, plan = lambda: now[0], rig.engine.members.planner
    share, rig.engine.runner.run = plan.share, taking(rig.engine.runner.run, now, 0.5)
    plan.share = taking(share, now, 8.0)
    plan.observe = taking(lambda *told: heard.append(told[-1]), now, 8.0)
    rig.write(asks(2))
    assert len(heard) > 3
    assert {spent.running for spent in heard} == {0.5}
    assert {spent.around for spent in heard} == {0.0}


def test_a_step_takes_as_long_as_the_text_of_the_one_before_too():
    """A draft's tokens become text as well, which a planner that compares steps has to pay for."""
    rig, heard, now = toy().build(), list[float](), [0.0]
    rig.engine.clock, rig.engine._emit = lambda: now[0], taking(rig.engine._emit, now, 2.0)
    rig.engine.members.planner.observe = lambda *told: heard.append(told[-1].around)
    rig.write(asks(2))
    assert len(heard) > 3
    assert heard == [0.0] + [2.0] * (len(heard) - 1)


def taking(function, now, seconds):
    """The function, which takes so long."""

    def slow(*arguments):
        now[0] += seconds
        return function(*arguments)

    return slow


def test_a_second_request_finds_the_prefix_of_the_first():
    rig = toy(cache="paged:block_size=4").build()
    ask = asks(1, 21)[0]
    first, second = rig.write([ask])[0], rig.write([ask])[0]
    assert first.tokens == second.tokens == alone(ask).tokens
    assert rig.said[1][-1].stats.cached == 20
    assert rig.said[0][-1].stats.cached == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_frees_everything_and_leaves_the_others_alone(steps):
    rig = toy().resized(max_requests=2, max_step_tokens=6).build()
    numbers = [rig.add(ask) for ask in asks(4)]  # two run, two wait
    for _ in range(steps):
        rig.step()
    for number in (numbers[0], numbers[3]):
        rig.engine.abort(number)
    rig.engine.abort(99)  # unknown ids are nobody's business
    rig.finish()
    assert [rig.text(n).finish_reason for n in numbers] == ["abort", "length", "length", "abort"]
    assert [rig.text(n).tokens for n in numbers[1:3]] == [alone(ask).tokens for ask in asks(4)[1:3]]
    assert [cache.free() for cache in rig.caches] == rig.rooms


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_no_token_comes_after_the_last_allowed_one(limit):
    text = toy(drafter=LONG).build().write([Ask((0, 1), replace(GREEDY, max_tokens=limit))])
    assert len(text[0].tokens) == limit
    assert text[0].finish_reason == "length"


def test_an_event_tells_what_was_drafted_and_what_of_it_stands():
    rig = toy(drafter="draft-model:model=toy:9:5,depth=3,tree=static").build()
    rig.write([Ask((0, 1, 2), replace(GREEDY, temperature=1.0, seed=1, max_tokens=40))])
    steps = [event for event in rig.said[0] if event.emissions]
    assert {len(event.path) for event in steps} >= {0, 1}, "nothing was refused, or all was; the test shows nothing"
    for event in steps:
        tokens = [e.token for e in event.emissions]
        assert [event.draft.tokens[node] for node in event.path] == tokens[: len(event.path)]
        assert [event.draft.parents[node] for node in event.path] == [-1, *event.path[:-1]][: len(event.path)]
        assert len(event.emissions) - len(event.path) == (event.emissions[-1].source == "target")


def test_a_text_ends_at_a_stop_token_inside_a_draft():
    plain = alone(Ask((0, 1), GREEDY)).tokens
    stop = plain[5]
    sampling = replace(GREEDY, stop_token_ids=(stop,))
    text = toy(drafter=LONG).build().write([Ask((0, 1), sampling)])[0]
    assert text.tokens == plain[: plain.index(stop) + 1]
    assert text.finish_reason == "stop"


def test_a_pass_that_fails_ends_its_requests_and_not_the_engine(caplog):
    rig = toy().build()
    working = rig.engine.runner.run

    def broken(work):
        rig.engine.runner.run = working
        raise RuntimeError("out of memory")

    rig.engine.runner.run = broken
    failed = rig.write(asks(2))
    assert {t.finish_reason for t in failed} == {"error"}
    assert {t.error for t in failed} == {"the step failed (RuntimeError); the log says where, and at level DEBUG why."}
    assert "a step failed with RuntimeError" in caplog.text
    assert caplog.text.count("a step failed") == 1
    assert rig.write(asks(1))[0].tokens == alone(asks(1)[0]).tokens
    assert [cache.free() for cache in rig.caches] == rig.rooms


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (ZeroDivisionError("x"), "the step failed (ZeroDivisionError); the log says where, and at level DEBUG why."),
        (RequestError("ask less."), "ask less."),
    ],
)
def test_a_verdict_that_fails_ends_its_requests_and_not_the_engine(problem, sentence, caplog):
    rig = toy().build()
    working = rig.engine.members.decoder.commit

    def broken(*_):
        rig.engine.members.decoder.commit = working
        raise problem

    rig.engine.members.decoder.commit = broken
    failed = rig.write(asks(2))
    assert [(t.finish_reason, t.error) for t in failed] == [("error", sentence)] * 2
    assert rig.engine.stats.failed_requests == 2
    assert rig.write(asks(1))[0].tokens == alone(asks(1)[0]).tokens
    assert [cache.free() for cache in rig.caches] == rig.rooms


def test_a_ban_of_everything_ends_one_request_only():
    rig = toy().build()
    bad = Ask((0, 1), Sampling(temperature=0, max_tokens=4, allowed_tokens=(2,), bad_words=((2,),)))
    first, second = rig.write([bad, asks(1)[0]])
    assert first.finish_reason == "error"
    assert "leave no token" in first.error
    assert second.tokens == alone(asks(1)[0]).tokens


@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize(
    "drafter",
    [
        "ngram:min_match=1",
        "draft-model:model=toy:100,depth=2",
        "draft-model:model=toy:100,depth=2,tree=level",
        BushyDrafter,
    ],
)
def test_a_draft_into_a_dead_end_changes_nothing(drafter, verifier):
    """Nothing may follow a 0. Every outcome has plain decoding's probability, the ends by error included."""
    sampling = Sampling(max_tokens=3, bad_words=((0, 0), (0, 1), (0, 2)))

    def law(engine):
        def run(rngs):
            rig = engine.build()
            texts = rig.write([Ask((0, 1, 2, 0, 1), sampling, rng) for rng in rngs])
            assert rig.engine.stats.draft_failures == 0
            return [(text.tokens, text.finish_reason) for text in texts]

        return outcomes(run, 32)

    drafted = Toy(drafter=drafter, verifier=verifier)
    plain = law(drafted.plain())
    assert sum(weight for (_, reason), weight in plain.items() if reason == "error") > 0.1
    assert all(0 not in tokens[:-1] for tokens, _ in plain)
    assert distance(plain, law(drafted)) < 1e-9


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [((), "the prompt is empty"), ((1,) * 64, "shorten it"), ((1, 5), "does not exist"), ((-1,), "does not exist")],
)
def test_what_cannot_be_served_is_refused_at_the_door(prompt, sentence):
    rig = toy().build()
    with pytest.raises(RequestError, match=sentence):
        rig.engine.add(prompt, GREEDY)
    assert not rig.engine.busy


def test_the_context_is_filled_to_its_last_token():
    text = toy(drafter=LONG).build().write([Ask((1,) * 60, replace(GREEDY, max_tokens=None))])
    assert len(text[0].tokens) == 4


def test_an_engine_leaves_no_thread_behind():
    before = threading.active_count()
    toy().build().write(asks(1))
    gc.collect()
    for _ in range(100):
        if threading.active_count() <= before:
            return
        time.sleep(0.02)
    pytest.fail("the watchdog of an engine that is gone still runs")
