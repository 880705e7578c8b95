"""`forerun bench serve`: what its clients count, and that it counts what a server really said."""

import asyncio
import contextlib
import json

import pytest

from forerun import LLM
from forerun.bench.load import Answer, ask, closed, figures, opened
from forerun.bench.serve import Order, _prompted, plot, run
from forerun.errors import ForerunError
from forerun.server.run import in_background
from forerun.server.settings import Settings


def test_figures_are_those_of_the_answers():
    answers = [
        Answer(0.0, 200, 600, [0.1, 0.2, 0.4], 4),  # ttft 100 ms, tpot 100 ms
        Answer(0.0, 200, 20, [0.3, 0.4, 0.5], 3),  # ttft 300 ms, tpot 100 ms
        Answer(0.5, 200, 20, [0.7, 1.0], 2),  # ttft 200 ms, tpot 300 ms
        Answer(0.5, 429),
        Answer(0.5, 200, 20, [0.6], 0),  # cut off: its usage never came
    ]
    found = figures(answers, ttft_ms=250, tpot_ms=150)
    assert (found["requests"], found["failed"], found["seconds"]) == (5, 2, 1.0)
    assert found["tokens_per_second"] == pytest.approx(9)
    assert found["requests_per_second"] == pytest.approx(3)
    assert found["goodput"] == pytest.approx(1)
    assert found["ttft_ms"]["p50"] == pytest.approx(200)
    assert found["tpot_ms"] == pytest.approx({"p50": 100, "p95": 280, "p99": 296})
    assert found["itl_ms"]["p50"] == pytest.approx(100)
    assert found["ttft_long_ms"]["p99"] == pytest.approx(100)
    assert found["ttft_short_ms"]["p50"] == pytest.approx(250)


def test_a_part_counts_when_it_comes():
    async def serve(_, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        said = {"delta": {"role": "assistant"}}, {"text": ""}, {"text": "a"}, {"delta": {"content": "b"}}
        for part in ({"choices": [one]} for one in said):
            await asyncio.sleep(0.1)
            writer.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        writer.write(b'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\ndata: [DONE]\n\n')
        writer.close()

    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})

    answer = asyncio.run(main())
    assert answer.sound
    assert (len(answer.parts), answer.tokens) == (2, 5)
    assert answer.ttft >= 0.29
    assert answer.tpot >= 0.09 / 4


def test_a_client_keeps_its_connection_until_it_is_refused():
    """And an answer's end is found wherever reads part it."""
    asked = []  # connections, in the order of requests

    async def serve(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.append(writer)
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            if len(asked) == 3:
                writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")
                continue
            part = b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 5}}\n\n'
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r" % (len(part), part))
            await asyncio.sleep(0.05)
            writer.write(b"\n\r\n")

    async def quietly(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    async def main():
        async with await asyncio.start_server(quietly, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await asyncio.wait_for(closed(url, [{}] * 5, 1), 30)

    answers = asyncio.run(main())
    assert [(a.status, a.tokens, a.sound) for a in answers] == [(200, 5, True)] * 2 + [(429, 0, False)] + [
        (200, 5, True)
    ] * 2
    assert [writer is asked[0] for writer in asked] == [True] * 3 + [False] * 2
    assert asked[3] is asked[4]


def test_loads_are_run_against_a_server():
    bodies = [
        {
            "prompt": "Once",
            "max_tokens": 6,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ] * 6
    with in_background(LLM("reference", threads=1, profiles="off"), Settings(port=0)) as url:
        for found in (
            asyncio.run(closed(url, bodies, 3)),
            asyncio.run(opened(url, bodies, [0.005 * i for i in range(6)])),
        ):
            assert [answer.tokens for answer in found] == [6] * 6
            assert all(answer.sound for answer in found)
        assert not asyncio.run(ask(url, {"prompt": 1})).sound


def test_prompts_of_every_category_come_in_turn_and_chats_as_chats():
    config = {"model": "reference", "threads": 1, "profiles": "off", "drafter": "none"}
    order = Order(concurrency=(2,), requests=5, against=("library",), categories=("story", "chat", "code"))
    bodies, moments = _prompted(order, {"max_tokens": 4})
    assert [sorted({"prompt", "messages"} & body.keys()) for body in bodies] == [
        [name] for name in ("prompt", "messages", "prompt", "prompt", "messages")
    ]
    assert len({json.dumps(body) for body in bodies}) == len(moments) == 5
    found = run(order, config, {"max_tokens": 4, "temperature": 0.0})
    assert [load["failed"] for load in found["loads"]] == [0, 0]


def test_a_server_of_its_own_is_started_and_ended():
    config = {"model": "reference", "threads": 1, "profiles": "off", "drafter": "none"}
    found = run(Order(concurrency=(2,), requests=3), config, {"max_tokens": 4, "temperature": 0.0})
    assert [load["failed"] for load in found["loads"]] == [0]
    assert found["loads"][0]["requests"] == 3


def test_servers_take_turns_and_are_compared(tmp_path):
    config = {"model": "reference", "threads": 1, "profiles": "off", "drafter": "none"}
    order = Order(concurrency=(1, 2), requests=6, against=("--drafter=ngram", "library"), repeats=2, parts=3)
    found = run(order, config, {"max_tokens": 4, "temperature": 0.0})
    assert [(load["concurrency"], load["flags"]) for load in found["loads"]] == [
        (clients, flags) for clients in (1, 2) for flags in ("", "--drafter=ngram", "library")
    ]
    assert all(load["failed"] == 0 and load["tokens_per_second"] > 0 for load in found["loads"])
    assert [load.get("client_us_per_token", 0) > 0 for load in found["loads"]] == [True, True, False] * 2
    assert [load["over"]["tokens_per_second"]["runs"] for load in found["loads"] if load["flags"]] == [6] * 4
    assert [load["requests"] for load in found["loads"]] == [12] * 6
    assert plot(found).startswith(b"\x89PNG")


@pytest.mark.parametrize(("asked", "slots"), [({}, [1, 8]), ({"max_requests": 2}, [1, 2])])
def test_the_library_runs_no_more_at_a_time_than_the_server(monkeypatch, asked, slots):
    opened = []
    monkeypatch.setattr("forerun.bench.serve.LLM", lambda **own: opened.append(own["max_requests"]) or LLM(**own))
    config = {"model": "reference", "threads": 1, "profiles": "off", "drafter": "none", **asked}
    run(Order(concurrency=(1, 9), requests=9, against=("library",)), config, {"max_tokens": 2})
    assert opened == slots


def test_a_trace_is_asked_at_its_moments():
    config = {"model": "reference", "threads": 1, "profiles": "off", "drafter": "none"}
    found = run(Order(requests=3, rate=(40.0,), trace="mixed"), config, {"temperature": 0.0})
    assert [(load["rate"], load["requests"], load["failed"]) for load in found["loads"]] == [(40.0, 3, 0)]


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (Order(trace="mixed"), "give --rate"),
        (Order(rate=(1.0,), against=("library",)), "use --concurrency"),
        (Order(rate=(1.0,), trace="nowhere"), "is not there"),
        (Order(concurrency=(1, 4), requests=7, parts=2), "--requests 8"),
        (Order(rate=(1.0,), parts=2), "use --concurrency"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(order, sentence):
    with pytest.raises(ForerunError, match=sentence):
        run(order, {"model": "reference"}, {})


def test_a_server_that_is_not_there_is_a_sentence():
    with pytest.raises(ForerunError, match="no request was answered"):
        run(Order(url="http://127.0.0.1:9", concurrency=(1,), requests=1), {}, {})
    with pytest.raises(ForerunError, match="try forerun serve with these flags"):
        run(Order(concurrency=(1,), requests=1), {"model": "/nowhere/at/all"}, {})
