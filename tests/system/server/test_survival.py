"""Clients that go at any moment, faults in any call, more load than there is room, and ends amid it all."""

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from forerun import LLM, Sampling
from forerun.models.toy import ToyModel
from forerun.server import connection, loop, reply, service, shapes
from forerun.server.app import create_app
from forerun.server.run import in_background
from forerun.server.settings import Settings

SHORT = {"prompt": "abab", "max_tokens": 6, "seed": 1}
LONG = {**SHORT, "max_tokens": 400}


def toy(**keywords):
    return LLM(ToyModel(6, context_length=2000), threads=1, profiles="off", cache="paged", **keywords)


def post(web, body=SHORT, **keywords):
    return web.post("/v1/completions", json=body, **keywords)


class Client:
    """One request straight to the app; `left` is set when its client goes."""

    def __init__(self, body):
        self.raw, self.left, self.said, self.asked = json.dumps(body).encode(), asyncio.Event(), [], 0

    async def receive(self):
        self.asked += 1
        if self.asked == 1:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": self.raw, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await asyncio.sleep(0)
        self.said.append(message)

    def scope(self):
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        path = {"path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": ""}
        kind = {"type": "http", "method": "POST", "http_version": "1.1", "scheme": "http"}
        return {**kind, **path, "headers": headers, "state": {}}


MOMENTS = [*range(24), *(0.002 * i for i in range(1, 26)), None]  # turns of the event loop, seconds, never


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_may_go_at_any_await(stream):
    """R12: fifty moments from the first byte to the last; the neighbour's text is the library's every time."""
    llm = toy(max_requests=3)
    room, step = llm.engine.cache.free(), llm.engine.step
    expected = toy().generate("abab", Sampling(seed=1, max_tokens=40))[0].text
    llm.engine.step = lambda: (time.sleep(0.001), step())[1]
    ends = Counter()

    async def leave(app, moment):
        neighbour, client = Client({**SHORT, "max_tokens": 40}), Client({**SHORT, "stream": stream, "n": 2})
        tasks = [asyncio.create_task(app(c.scope(), c.receive, c.send)) for c in (neighbour, client)]
        if moment is None:
            await tasks[1]
        for _ in range(moment if isinstance(moment, int) else 1):
            await asyncio.sleep(moment if isinstance(moment, float) else 0)
        client.left.set()
        for task in reversed(tasks):
            await asyncio.wait_for(task, 60)
        body = b"".join(m.get("body", b"") for m in neighbour.said)
        assert json.loads(body)["choices"][0]["text"] == expected
        last = client.said[-1] if client.said else {"type": "nothing"}
        ends[last["type"] == "http.response.body" and not last.get("more_body")] += 1

    async def main():
        app = create_app(llm, Settings())
        state = app.state.service
        state.loop.start()
        before = len(asyncio.all_tasks())
        for moment in MOMENTS:
            await leave(app, moment)
            await state.loop.call(lambda _: None)  # the orders before it are obeyed
            assert not state.admission.inside
            assert await state.loop.call(lambda engine: (list(engine.requests), engine.cache.free())) == ([], room)
        assert len(asyncio.all_tasks()) == before
        await state.loop.stop()

    asyncio.run(main())
    llm.engine.cache.check()
    assert ends[True]
    assert ends[False]


FAULTS = [
    (service.Service, "completion"),
    (service.Service, "check_model"),
    (service.Service, "_read"),
    (service.Service, "words"),
    (service.Order, "__init__"),
    (loop.EngineLoop, "submit"),
    (loop.EngineLoop, "_seat"),
    (loop.Ticket, "read"),
    (reply.Reply, "__init__"),
    (reply.Reply, "_first"),
    (reply.Reply, "_read"),
    (reply.Told, "hear"),
    (shapes.CompletionReport, "of"),
    (reply.Reply, "_choice"),
    (reply.Reply, "_usage"),
    (LLM, "encode"),
]


CASES = [(*fault, stream) for fault in FAULTS for stream in (True, False)] + [(reply.Reply, "_at_once", True)]


@pytest.mark.parametrize(("owner", "name", "stream"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_in_the_server_is_one_request_s(owner, name, stream, served_once, monkeypatch, eventually):
    """R25: the first request of two gets an error or is cut off; the next one is served, and nothing is kept."""
    url, llm = served_once
    call = getattr(owner, name)

    def failing(*args, **kwargs):
        monkeypatch.setattr(owner, name, call)
        raise ZeroDivisionError("abab")

    body = {**SHORT, "max_tokens": 100, "stream": stream, "logprobs": 1, "model": "toy:0:6"}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    with httpx.Client(base_url=url, timeout=60) as web:
        whole = post(web, body)
        assert whole.status_code == 200
        monkeypatch.setattr(owner, name, failing)
        try:
            found = post(web, body)
            assert found.status_code == 500 or "[DONE]" not in found.text
            assert "abab" not in found.text or found.status_code == 200
        except httpx.RemoteProtocolError:
            assert stream
        assert getattr(owner, name) is call
        assert post(web, body).status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200
    eventually(lambda: not llm.engine.requests)
    assert llm.engine.cache.free() == llm.room


@pytest.fixture(scope="module")
def served_once():
    """(address, LLM) of a toy that all faults are tried on."""
    llm = toy(max_requests=2)
    llm.room = llm.engine.cache.free()
    with in_background(llm, Settings(port=0)) as url:
        yield url, llm


def test_parts_take_the_short_way_and_are_the_text(served_once, monkeypatch):
    """R8: what is told at once and what a task is woken for, in their order."""
    url, poured, pour = served_once[0], [], connection._pour
    monkeypatch.setattr(connection, "_pour", lambda *known: poured.append(pour(*known)) or poured[-1])
    body = {**SHORT, "max_tokens": 300}
    with httpx.Client(base_url=url, timeout=60) as web:
        lines = post(web, {**body, "stream": True}).text.splitlines()
        parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(part["choices"][0]["text"] for part in parts) == post(web, body).json()["choices"][0]["text"]
    assert any(poured)


def test_streams_that_are_asked_for_in_one_breath_come_in_their_order(served_once):
    """Each by its own short way, on one connection."""
    asked = []
    for count in (300, 200, 100):
        raw = json.dumps({**SHORT, "max_tokens": count, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
        last = "Connection: close\r\n" if count == 100 else ""
        asked.append(f"{head}{last}Content-Type: application/json\r\n\r\n".encode() + raw)
    heard = b""
    with socket.create_connection(("127.0.0.1", int(served_once[0].rpartition(":")[2])), timeout=60) as client:
        client.sendall(b"".join(asked))
        while part := client.recv(65536):
            heard += part
    answers, texts = heard.decode().split("HTTP/1.1 200 OK")[1:], []
    for answer in answers:
        assert answer.count("[DONE]") == 1
        parts = [json.loads(line.removeprefix("data: ")) for line in answer.splitlines() if line.startswith("data: {")]
        texts.append("".join(part["choices"][0]["text"] for part in parts))
    with httpx.Client(base_url=served_once[0], timeout=60) as web:
        bodies = [{**SHORT, "max_tokens": count} for count in (300, 200, 100)]
        assert texts == [post(web, body).json()["choices"][0]["text"] for body in bodies]


def test_the_short_way_ends_where_a_reader_falls_behind(monkeypatch, eventually):
    """B18: what is not read is not written either; the transport holds what it may, and the rest waits."""
    poured, pour = [], connection._pour
    monkeypatch.setattr(connection, "_pour", lambda *known: poured.append(pour(*known)) or poured[-1])
    raw = json.dumps({"prompt": "ab", "max_tokens": 15_000, "seed": 1, "stream": True, "n": 8, "logprobs": 5}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    llm = LLM(ToyModel(6, context_length=16_000), threads=1, profiles="off", max_requests=8)
    with in_background(llm, Settings(port=0)) as url, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + raw)
        eventually(lambda: poured and not poured[-1])
    assert any(poured)


def test_a_count_that_fails_costs_no_text(served_once, monkeypatch):
    """R25: metrics are told in the engine's thread."""
    url, _ = served_once
    with httpx.Client(base_url=url, timeout=60) as web:
        whole = post(web).json()["choices"][0]["text"]

        def failing(*_):
            raise ZeroDivisionError

        monkeypatch.setattr("forerun.server.metrics.Metrics.observe", failing)
        assert post(web).json()["choices"][0]["text"] == whole
        assert web.get("/health").status_code == 200


def test_ten_times_the_room_and_then_none(serving, eventually):
    """R17: who finds no room hears when to come again, the others get their texts, and wrong keys take no place."""
    llm = toy(max_requests=4)
    step = llm.engine.step
    llm.engine.step = lambda: (time.sleep(0.002), step())[1]
    expected = toy().generate("abab", Sampling(seed=1, max_tokens=6))[0].text
    right, wrong = ({"authorization": f"Bearer {key}"} for key in ("right", "wrong"))
    until, refusals = time.monotonic() + 3, []

    def flood(number):
        found = Counter()
        with httpx.Client(base_url=url, timeout=60) as web:
            while time.monotonic() < until:
                began = time.monotonic()
                answer = post(web, headers=wrong if number % 8 == 0 else right)
                found[answer.status_code] += 1
                if answer.status_code == 200:
                    assert answer.json()["choices"][0]["text"] == expected
                else:
                    refusals.append(time.monotonic() - began)
                    time.sleep(0.05)
                assert answer.status_code != 429 or int(answer.headers["retry-after"]) >= 1
        return found

    with serving(llm, max_queue=4, api_key=("right",)) as url, ThreadPoolExecutor(80) as pool:
        found = sum(pool.map(flood, range(80)), Counter())
        assert found.keys() == {200, 401, 429}, found
        assert found[200] >= 8
        eventually(lambda: not llm.engine.requests)
        began = time.monotonic()
        assert httpx.post(f"{url}/v1/completions", json=SHORT, headers=right, timeout=60).status_code == 200
        assert time.monotonic() - began < 5
    assert sorted(refusals)[len(refusals) // 2] < 2  # eighty threads of this test's own share the processor


def test_who_finds_no_room_hears_so_soon(tmp_path, eventually):
    """R17, by the clock of clients in another process; docs/reliability.md has what the figures are alone."""
    log, refused, answers = tmp_path / "log", [], Counter()
    words = "serve", "reference", "--port", "0", "--threads", "1", "--max-requests", "1", "--max-queue", "1"
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True}

    async def client(web):
        await web.get("/health")  # a connection that stays
        until = time.monotonic() + 2
        while time.monotonic() < until:
            began = time.monotonic()
            answer = await post(web, body)
            answers[answer.status_code] += 1
            if answer.status_code == 429:
                refused.append(time.monotonic() - began)
                await asyncio.sleep(0.05)

    async def flood(url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as web:
            await asyncio.gather(*(client(web) for _ in range(12)))

    command = [sys.executable, "-c", "from forerun.cli import main; main()", *words]
    with log.open("w") as said, subprocess.Popen(command, stderr=said, cwd=tmp_path) as process:
        try:
            eventually(lambda: "serving" in log.read_text())
            asyncio.run(flood(re.search(r"http://\S+", log.read_text())[0]))
        finally:
            process.kill()
    assert answers.keys() == {200, 429}, answers
    told = 1000 * np.quantile(refused, [0.5, 0.99, 1]), answers
    logging.getLogger("tests").info("refused after %s ms (median, 99 %%, most), %s", *told)
    assert np.median(refused) < 1


@pytest.mark.parametrize("seconds", [30.0, 0.05])
def test_twenty_ends_amid_requests(seconds, serving, eventually):
    """R19: everybody inside gets all of the text, or what there is of it and a reason; nothing is kept."""
    whole = toy().generate("abab", Sampling(seed=1, max_tokens=30))[0].text

    def ask(url):
        return httpx.post(f"{url}/v1/completions", json={**SHORT, "max_tokens": 30}, timeout=60)

    for again in range(10):
        llm = toy(max_requests=3)
        room, step = llm.engine.cache.free(), llm.engine.step
        llm.engine.step = lambda step=step: (time.sleep(0.004), step())[1]
        with ThreadPoolExecutor(6) as pool:
            with serving(llm, drain_timeout=seconds) as url:
                asked = [pool.submit(ask, url) for _ in range(6)]
                eventually(lambda llm=llm: len(llm.engine.requests) == 6)
                time.sleep(0.01 * again)
            for answer in asked:
                choice = answer.result().json()["choices"][0]
                assert choice["finish_reason"] in ({"length"} if seconds > 1 else {"length", "abort"})
                assert (
                    choice["text"] == whole if choice["finish_reason"] == "length" else whole.startswith(choice["text"])
                )
        assert not llm.engine.requests
        assert llm.engine.cache.free() == room
