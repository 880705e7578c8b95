"""A reader has so long for each part, however many there are."""

import asyncio

import pytest

from forerun.server.sse import stream, unless_gone


async def parts(count, pause=0.0):
    for _ in range(count):
        await asyncio.sleep(pause)
        yield b"data: {}\n\n"


def streamed(some, lasts, seconds):
    """What was sent, by a `send` that takes so long for each of the messages; and whether it was given up."""
    sent = []

    async def send(message):
        sent.append(message)
        await asyncio.sleep(lasts[len(sent) - 1] if len(sent) <= len(lasts) else 0)

    asyncio.run(stream(send, some, seconds))
    return sent


def test_many_short_waits_are_no_long_one():
    sent = streamed(parts(8), [0, *[0.15] * 8], 1.0)
    assert len(sent) == 10
    assert not sent[-1]["more_body"]


def test_what_comes_late_is_not_the_readers_fault():
    assert len(streamed(parts(2, pause=0.3), [], 0.1)) == 4


@pytest.mark.parametrize("at", [1, 3, 4])
def test_one_that_lasts_too_long_ends_it(at):
    """Whichever it is, the last message as well."""
    with pytest.raises(TimeoutError):
        streamed(parts(3, pause=0.03), [0] * at + [5], 0.1)


def test_an_end_leaves_no_timer():
    async def run():
        async def send(message):
            pass

        await stream(send, parts(3), 60)
        return [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]

    assert asyncio.run(run()) == []


def test_work_for_a_client_who_goes_is_ended():
    ended = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    async def receive():
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    asyncio.run(asyncio.wait_for(unless_gone(receive, work()), 5))
    assert ended == ["work"]
