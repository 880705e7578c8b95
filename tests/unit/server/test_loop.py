"""The engine's thread: orders are obeyed or refused, and nobody waits for ever."""

import asyncio
import contextlib
import threading
import time

import pytest

from forerun import LLM
from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.server.loop import Ask, Bell, EngineLoop, Ticket
from forerun.types import Event, Sampling

SAMPLING = Sampling(max_tokens=8, seed=1)


@pytest.fixture
def llm():
    return LLM(ToyModel(5, context_length=5000), threads=1, profiles="off", max_requests=2)


def drive(llm, work, seen=None, **keywords):
    """Run `work(loop)` on an event loop, with the engine's thread beside it."""

    async def main():
        loop = EngineLoop(llm.engine, lambda *news: seen.append(news) if seen is not None else None, **keywords)
        loop.start()
        try:
            return await asyncio.wait_for(work(loop), 120)
        finally:
            await loop.stop()

    return asyncio.run(main())


async def written(ticket):
    texts = ["" for _ in ticket.asks]
    reasons = [None for _ in ticket.asks]
    while None in reasons:
        for index, event in await ticket.read():
            texts[index] += event.text
            reasons[index] = event.finish_reason
    return list(zip(texts, reasons, strict=True))


def test_asks_are_written_as_the_library_writes_them(llm):
    expected = LLM(ToyModel(5), threads=1, profiles="off").generate(["ab", "ba", "aa"], SAMPLING)

    async def work(loop):
        return await written(await loop.submit([Ask(llm.encode(p), SAMPLING) for p in ("ab", "ba", "aa")]))

    assert drive(llm, work) == [(r.text, "length") for r in expected]
    assert not llm.engine.requests


def test_all_or_none_are_added(llm):
    seen = []

    async def work(loop):
        with pytest.raises(RequestError, match="does not exist"):
            await loop.submit([Ask([0, 1], SAMPLING), Ask([99], SAMPLING)])
        await written(await loop.submit([Ask([0], SAMPLING)]))

    drive(llm, work, seen)
    assert not llm.engine.requests
    assert [e.finish_reason for _, _, e in seen if e.finish_reason] == ["abort", "length"]


def test_who_leaves_hears_no_more_and_frees_his_place(llm):
    room = llm.engine.cache.free()

    async def work(loop):
        ticket = await loop.submit([Ask([0, 1], Sampling(seed=1))])
        await ticket.read()
        loop.leave(ticket)
        while await loop.call(lambda engine: bool(engine.requests)):
            pass
        await loop.call(lambda _: None)
        ticket.expire()
        with contextlib.suppress(TimeoutError):  # what it heard before
            await ticket.read()
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await ticket.read()

    drive(llm, work)
    assert llm.engine.cache.free() == room


def test_a_step_is_heard_of_while_the_next_pass_runs(llm):
    run, heard, waited = llm.engine.runner.run, threading.Event(), []

    def slow(work):
        waited.append(heard.wait(30) if waited else True)
        heard.clear()
        return run(work)

    llm.engine.runner.run = slow

    async def work(loop):
        ticket, reason = await loop.submit([Ask([0], SAMPLING)]), None
        while reason is None:
            reason = (await ticket.read())[-1][1].finish_reason
            heard.set()

    drive(llm, work)
    assert waited == [True] * 8


def test_a_bell_that_is_heard_too_late_takes_no_look_away(llm):
    """What it was rung for was handed out by the look before, and no pass rings for what comes next."""

    async def main():
        loop, ticket = EngineLoop(llm.engine, lambda *_: None), Ticket([Ask([0], SAMPLING)])
        loop._home, loop._tickets[7] = asyncio.get_running_loop(), (ticket, 0)
        for text in "ab":
            loop._tell([Event(7, (), text)])
            if text == "a":
                loop._deliver(), loop._deliver()
            [(_, event)] = await asyncio.wait_for(ticket.read(), 30)
            assert event.text == text

    asyncio.run(main())


class Busy(list):
    """Is told, which takes three milliseconds of work."""

    def append(self, news):
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        super().append(news)


def slowed(llm, seconds, begins=lambda: None):
    """Passes of a length, each behind a call."""
    run = llm.engine.runner.run

    def slow(work):
        begins()
        time.sleep(seconds)
        return run(work)

    llm.engine.runner.run = slow


@pytest.mark.parametrize("beside", [True, False])
def test_a_pass_that_has_every_core_waits_until_much_was_told(llm, beside, monkeypatch):
    monkeypatch.setattr("forerun.server.loop._HELD", 30)
    seen, behind = Busy(), []
    slowed(llm, 0.06, lambda: behind.append(len(behind) - len(seen)))

    async def work(loop):
        return await written(await loop.submit([Ask([0], SAMPLING)]))

    drive(llm, work, seen, beside=beside)
    late = sum(n > 0 for n in behind[2:])  # nobody knows yet how long the first takes
    assert late > 2 if beside else late <= 1, behind


def test_who_waits_too_long_still_reads_what_came(llm):
    async def work(loop):
        ticket = await loop.submit([Ask([0], SAMPLING)])
        while await loop.call(lambda engine: bool(engine.requests)):
            pass
        await asyncio.sleep(0.05)
        ticket.expire()
        assert await ticket.read()
        with pytest.raises(TimeoutError):
            await ticket.read()

    drive(llm, work)


def test_a_submission_that_is_cancelled_leaves_nothing(llm):
    step = llm.engine.step
    llm.engine.step = lambda: (time.sleep(0.05), step())[1]

    async def work(loop):
        running = await loop.submit([Ask([0], Sampling(seed=1))])
        asking = asyncio.create_task(loop.submit([Ask([0, 1], Sampling(seed=1))]))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await loop.call(lambda engine: list(engine.requests)) == running.numbers
        loop.leave(running)

    drive(llm, work)


def test_a_broken_engine_tells_everybody(llm):
    """R20: those that run, those that ask, and those that come later."""

    async def work(loop):
        ticket = await loop.submit([Ask([0], Sampling(seed=1)), Ask([1], Sampling(seed=1))])

        def broken():
            raise MemoryError

        await ticket.read()
        llm.engine.step = broken
        assert [reason for _, reason in await written(ticket)] == ["error", "error"]
        assert "MemoryError" in loop.broken
        for late in (loop.submit([Ask([0], SAMPLING)]), loop.call(lambda _: None), loop.abort_all()):
            with pytest.raises(RequestError, match="the engine broke"):
                await late
        loop.leave(ticket)

    drive(llm, work)


def test_an_order_that_fails_fails_alone(llm):
    async def work(loop):
        with pytest.raises(ZeroDivisionError):
            await loop.call(lambda _: 1 / 0)
        assert loop.broken is None
        return await loop.call(lambda _: 7)

    assert drive(llm, work) == 7


def test_the_end_of_the_loop_ends_what_runs(llm):
    tickets = []

    async def work(loop):
        tickets.append(await loop.submit([Ask([0], Sampling(seed=1))]))

    async def main():
        loop = EngineLoop(llm.engine, lambda *_: None)
        loop.start()
        await work(loop)
        await loop.stop()
        return await asyncio.wait_for(written(tickets[0]), 60)

    assert asyncio.run(main())[0][1] == "error"


def test_an_idle_engine_says_that_it_lives(llm):
    """R21."""

    async def work(loop):
        await asyncio.sleep(1.2)
        return loop.silence()

    assert drive(llm, work) < 30
    assert llm.engine.stats.steps == 0


def test_who_waits_may_be_told_at_once(llm):
    """Every event once and in order, whether he was told it or woke for it; what fails in telling fails his reading."""
    told, heard = [], []

    def at_once(news):
        if len(told) > 3:
            return False
        told.extend(news)
        heard.extend(event for _, event in news)
        return True

    async def work(loop):
        ticket = await loop.submit([Ask([0], Sampling(max_tokens=40, seed=1))])
        while not heard or heard[-1].finish_reason is None:
            heard.extend(event for _, event in await ticket.read(at_once))
        other = await loop.submit([Ask([0], Sampling(max_tokens=4000, seed=1)), Ask([1], SAMPLING)])

        async def fail():
            while True:  # what was there before he read is not told
                await other.read(lambda _: 1 / 0)

        with pytest.raises(ZeroDivisionError):
            await fail()

    drive(llm, work)
    assert told
    text = "".join(event.text for event in heard)
    assert text == LLM(ToyModel(5), threads=1, profiles="off").generate(["a"], Sampling(max_tokens=40, seed=1))[0].text


def burning(*_):
    """An observer who takes 3 ms of a core."""
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize(
    "case",
    [
        ("_woken", True, 0.0, lambda *_: None, 31, 0.0),
        ("_woken", False, 0.0, lambda *_: None, 1, 0.05),
        ("_woken", True, 0.02, burning, 1, 0.02),
        ("_news", True, 0.02, burning, 1, 0.04),  # each a look's, the first text's too: no bell finds anything
    ],
)
def test_deliveries_are_as_many_as_somebody_waits_for_and_they_may_take(llm, monkeypatch, case):
    """One per step for whoever reads parts, few where that takes long or the end alone is waited for; all comes."""
    awaited, eager, slowest, observe, least, between = case
    monkeypatch.setattr("forerun.server.loop._SLOWEST", slowest)
    calls, sampling = [], Sampling(max_tokens=60, seed=1)
    expected = llm.generate(["a"], sampling)[0]  # which also takes what a first request takes besides
    step = llm.engine.step

    async def main():
        loop = EngineLoop(llm.engine, observe)

        def slowly():  # what was told is delivered before the next step, however busy the machine is
            time.sleep(0.005)
            until = time.perf_counter() + 0.2  # there may be no look, and the bell rings in a step
            while getattr(loop, awaited) and (awaited == "_woken" or time.perf_counter() < until):
                time.sleep(0.001)
            return step()

        monkeypatch.setattr(llm.engine, "step", slowly)
        deliver = loop._deliver
        monkeypatch.setattr(loop, "_deliver", lambda: calls.append(0) or deliver())
        loop.start()
        # Looks follow each other from here on.
        await written(await loop.submit([Ask([0], Sampling(max_tokens=4))], eager=eager))
        calls.clear()
        began = time.perf_counter()
        found = await written(await loop.submit([Ask([0], sampling)], eager=eager))
        seconds = time.perf_counter() - began
        await loop.stop()
        return found, seconds

    found, seconds = asyncio.run(main())
    assert found == [(expected.text, "length")]
    assert len(calls) >= least
    # Looks come besides, half as often at most, and the first ones, the end and the stop's.
    assert len(calls) * between <= 1.5 * seconds + 4 * between


def test_an_end_does_not_wait_for_a_long_pass(llm, monkeypatch):
    """Though something was told a moment ago, and nobody wants parts."""
    monkeypatch.setattr("forerun.server.loop._LEISURE", 30.0)
    step, steps, over = llm.engine.step, [], []

    def long():
        steps.append(0)
        if len(steps) == 4:
            time.sleep(2)
            over.append(0)
        return step()

    llm.engine.step = long

    async def work(loop):
        asks = [Ask([0], Sampling(max_tokens=count, seed=1)) for count in (3, 400)]
        ticket, ended = await loop.submit(asks, eager=False), []
        while not ended:
            ended = [index for index, event in await ticket.read() if event.finish_reason]
        told = bool(over)
        loop.leave(ticket)
        return ended, told

    assert drive(llm, work) == ([0], False)


def test_a_bell_wakes_a_loop_from_another_thread():
    async def main():
        heard = asyncio.Event()
        bell = Bell(asyncio.get_running_loop(), heard.set)
        threading.Thread(target=bell.ring).start()
        await asyncio.wait_for(heard.wait(), 60)
        heard.clear()
        bell.close()
        await asyncio.sleep(0)
        return heard.is_set()

    assert not asyncio.run(main())


@pytest.mark.parametrize("compiled", [True, False])
def test_who_rings_may_wait_for_the_answer_and_not_for_ever(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr("forerun.server.loop.load", lambda: None)

    async def main():
        seconds = [0.0]
        bell = Bell(asyncio.get_running_loop(), lambda: time.sleep(seconds[0]))

        def wait(most):
            began = time.perf_counter()
            bell.ring_until_answered(most)
            return time.perf_counter() - began

        found = []
        for seconds[0], most in [(0.2, 60), (0.0, 60), (0.5, 0.1), (0.3, 60)]:
            ringing = asyncio.create_task(asyncio.to_thread(wait, most))
            found.append(await asyncio.wait_for(ringing, 30))
            await asyncio.sleep(0)
        bell.close()
        return found

    answered, at_once, given_up, again = asyncio.run(main())
    assert answered >= 0.2
    assert at_once < 30
    assert given_up < 0.45
    assert again >= 0.3  # the answer to the one before, which came too late, is not its own


def test_nobody_looks_while_passes_as_long_as_the_last_run(llm, monkeypatch):
    looks, again = [], EngineLoop._again
    monkeypatch.setattr(EngineLoop, "_again", lambda loop, until: (looks.append(0), again(loop, until)))
    passes = []
    slowed(llm, 0.025, lambda: passes.append(0))

    async def work(loop):
        return await written(await loop.submit([Ask([0], Sampling(max_tokens=60, seed=1))]))

    drive(llm, work)
    assert len(passes) >= 50
    assert len(looks) < len(passes) / 2  # three for every pass where they came as soon as they may
