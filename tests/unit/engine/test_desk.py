"""One engine for many who ask: streams that are read by turns, calls within calls, threads."""

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from threading import Event

import pytest

from forerun import LLM, Sampling
from forerun.errors import RequestError
from forerun.types import Constraint

PROMPTS = [[1, 2, 3], [3, 0], [2], [4, 4, 1, 0], [0, 3, 2], [1], [2, 2], [3, 1]]
DRAWN = [Sampling(max_tokens=12 + 5 * i, seed=i, ignore_eos=True) for i in range(len(PROMPTS))]


def build(**keywords):
    return LLM("toy:0:5", drafter="ngram:min_match=1", planner="fixed", **{"max_requests": 3, **keywords})


def text(events):
    return [emission.token for event in events for emission in event.emissions]


@pytest.fixture
def _heard():
    """Ctrl-C is not ignored, as a job in the background inherits it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def alone():
    """What each prompt is answered by an engine that has nothing else to do."""
    return [list(build().generate([prompt], one)[0].tokens) for prompt, one in zip(PROMPTS, DRAWN, strict=True)]


def test_streams_may_be_read_by_turns(alone):
    llm = build()
    streams = [llm.stream(prompt, one) for prompt, one in zip(PROMPTS, DRAWN, strict=True)]
    found = [text(filter(None, events)) for events in zip(*zip_longest(*streams), strict=True)]
    assert found == alone
    assert not llm.engine.requests


def test_a_stream_goes_on_behind_what_is_written_in_between(alone):
    llm = build()
    stream = llm.stream(PROMPTS[0], DRAWN[0])
    begun = [next(stream)]
    others = llm.generate(PROMPTS[1:], DRAWN[1:])  # which brings the stream to its end as well
    assert [list(result.tokens) for result in others] == alone[1:]
    assert text([*begun, *stream]) == alone[0]


def test_nobody_hears_of_a_stream_that_was_left(alone):
    llm = build()
    stream, other = llm.stream(PROMPTS[7], DRAWN[7]), llm.stream(PROMPTS[1], DRAWN[1])
    next(stream)
    begun = [next(other)]
    del stream
    gc.collect()
    assert len(llm.engine.requests) == 1
    assert text([*begun, *other]) == alone[1]
    assert not llm.engine.requests
    assert not llm._desk._news
    assert not llm._desk._open
    llm.engine.cache.check()


def test_what_is_left_within_a_step_goes_with_the_next(alone):
    llm = build()
    stream, other, step = llm.stream(PROMPTS[7], DRAWN[7]), llm.stream(PROMPTS[1], DRAWN[1]), llm.engine.step
    begun = [next(stream), next(other)][1:]
    llm.engine.step = lambda: stream.close() or step()  # as a collection of garbage may, anywhere
    begun.append(next(other))
    assert len(llm.engine.requests) == 2
    llm.engine.step = step
    assert text([*begun, *other]) == alone[1]
    assert not llm.engine.requests


@pytest.mark.usefixtures("_heard")
@pytest.mark.parametrize("what", ["step", "add"])
def test_an_interrupt_comes_behind_what_is_under_way(alone, monkeypatch, what):
    llm, whole = build(), []
    real = getattr(llm.engine, what)

    def interrupted(*arguments, **keywords):
        signal.raise_signal(signal.SIGINT)
        whole.append(real(*arguments, **keywords))
        return whole[-1]

    for ask in (lambda: llm.generate(PROMPTS, DRAWN), lambda: list(llm.stream(PROMPTS[0], DRAWN[0]))):
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine, what, interrupted)
            with pytest.raises(KeyboardInterrupt):
                ask()
        assert len(whole) == 1  # to its end, and nothing behind it
        whole.clear()
        assert not llm.engine.requests
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [list(result.tokens) for result in llm.generate(PROMPTS, DRAWN)] == alone
    llm.engine.cache.check()


@pytest.mark.usefixtures("_heard")
def test_a_second_interrupt_comes_at_once(monkeypatch):
    llm, went = build(), []

    def endless():
        signal.raise_signal(signal.SIGINT)
        went.append("on")
        signal.raise_signal(signal.SIGINT)
        went.append("too far")

    monkeypatch.setattr(llm.engine, "step", endless)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS[0])
    assert went == ["on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_heard")
def test_two_interrupts_end_a_wait_for_another_thread(monkeypatch):
    llm, begun, over = build(), Event(), Event()
    real = llm.engine.step
    monkeypatch.setattr(llm.engine, "step", lambda: (begun.set(), over.wait(60), real())[-1])
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(llm.generate, [PROMPTS[0]], DRAWN[0])
        assert begun.wait(60)
        threads.submit(lambda: [time.sleep(0.2) or os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[1])
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        over.set()
        assert len(other.result(60)[0].tokens) == DRAWN[0].max_tokens
    assert not llm._desk._waiting


def test_threads_have_their_own_texts(alone):
    llm = build()

    def ask(i):
        if i % 2:
            return text(llm.stream(PROMPTS[i], DRAWN[i]))
        return list(llm.generate([PROMPTS[i]], DRAWN[i])[0].tokens)

    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        for _ in range(10):
            assert list(threads.map(ask, range(len(PROMPTS)), timeout=60)) == alone
    assert not llm.engine.requests
    llm.engine.cache.check()


def test_a_thread_does_not_wait_for_the_end_of_anothers_text():
    llm = build(context_length=4096)
    long = llm.stream([1], Sampling(max_tokens=4000, seed=0, ignore_eos=True))
    next(long)
    with ThreadPoolExecutor(1) as thread:
        short = thread.submit(llm.generate, [[2]], Sampling(max_tokens=4))
        while not short.done():
            next(long)
        assert len(short.result(60)[0].tokens) <= 4
    assert len(llm.engine.requests) == 1  # the long one still runs
    long.close()


def test_threads_with_a_real_model_write_what_one_does():
    llm = LLM("reference", drafter="draft-model", max_requests=4, threads=2)
    prompts, sampling = ["Once upon a time", "The dog", "One day", "def f(x):"], Sampling(temperature=0, max_tokens=24)
    expected = [llm.generate([prompt], sampling)[0].text for prompt in prompts]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            found = threads.map(lambda prompt: llm.generate([prompt], sampling)[0].text, prompts, timeout=120)
            assert list(found) == expected


def test_who_asks_from_within_a_step_is_told():
    said = []

    def nosy(text):
        try:
            llm.generate([[1]], Sampling(max_tokens=1))
        except RequestError as problem:
            said.append(str(problem))
        return [bytes([i]) for i in range(256)]

    llm = LLM("reference", monitors={"nosy": nosy}, drafter="none", threads=1)
    result = llm.generate("Once", Sampling(max_tokens=3, constraint=Constraint("monitors", "nosy")))[0]
    assert len(result.tokens) == 3
    assert said[0].startswith("an engine was asked from within its own step; ")
