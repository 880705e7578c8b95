"""The front before replicas that live in this process, and end when they are told to."""

import asyncio
import json
import logging
import time

import httpx
import pytest

from forerun import LLM, Sampling
from forerun.ray.front import LOST, Forwarded, Front, Replicas, create_front
from forerun.ray.replica import Asked, Replica
from forerun.server.run import beside
from forerun.server.settings import Settings

CONFIG = {"model": "toy:0:6", "drafter": "none", "threads": 1, "profiles": "off"}
BODY = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0}


class Gone(Exception):  # noqa: N818 - news, not a fault
    """A replica has ended."""


class Answer:
    """What Ray makes of a replica's generator: `ends` after so many lists of messages."""

    def __init__(self, parts, ends, pause):
        self.parts, self.left, self.pause, self.cancelled = parts, ends, pause, False

    async def __anext__(self):
        await asyncio.sleep(self.pause)
        self.left -= 1
        if self.left < 0:
            raise Gone
        return await anext(self.parts)

    def cancel(self):
        self.cancelled = True


class House:
    """One replica; the next requests end as `fates` say, then they go on for ever."""

    def __init__(self):
        self.replica = Replica(CONFIG, Settings(port=0))
        self.fates, self.answers, self.pause, self.ended = [], [], 0.0, False

    def ask(self, asked):
        assert isinstance(asked, Asked)
        fate = self.fates.pop(0) if self.fates else 10**9
        self.answers.append(Answer(self.replica(asked), fate, self.pause))
        return self.answers[-1]

    async def metrics(self):
        return [(name, (await self.replica.metrics())[1]) for name in ("one", "two")]

    def end(self):
        self.ended = self.replica.service.loop._stopping = True  # as its process does


@pytest.fixture
def house():
    return House()


@pytest.fixture
def front(house):
    def make(**fields):
        settings = Settings(port=0, **fields)
        replicas = Replicas(house.ask, house.metrics, Gone, house.end)
        return beside(create_front(replicas, settings, 8), settings)

    return make


def asked(url, **fields):
    return httpx.post(f"{url}/v1/completions", json={**BODY, **fields}, timeout=30)


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


def test_an_answer_passes_as_it_is(front, house):
    """Whole, streamed and refused: what the replica says, with the front's id; and every ask is let go."""
    text = LLM(**CONFIG).generate([BODY["prompt"]], Sampling(temperature=0, max_tokens=6))[0].text
    with front() as url:
        whole = httpx.post(f"{url}/v1/completions", json=BODY, headers={"x-request-id": "mine"})
        assert whole.json()["choices"][0]["text"] == text
        assert whole.headers["x-request-id"] == "mine"
        parts = events(asked(url, stream=True))
        assert "".join(part["choices"][0]["text"] for part in parts[:-1]) == text
        assert parts[-1] == "[DONE]"
        assert asked(url, tempreature=0).status_code == 400
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "toy:0:6"
        assert httpx.get(f"{url}/nothing").status_code == 404
        assert [httpx.get(f"{url}{path}").status_code for path in ("/health", "/ready")] == [200, 200]
    assert all(answer.cancelled for answer in house.answers)
    assert house.ended


def test_a_request_that_did_not_begin_is_asked_again(front, house):
    house.fates = [0, 0]
    with front() as url:
        assert asked(url).status_code == 200
    assert len(house.answers) == 3


def test_replicas_that_all_end_are_not_asked_for_ever(front, house):
    house.fates = [0] * 99
    with front() as url:
        found = asked(url)
    assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    assert len(house.answers) < 9


def test_a_request_that_began_is_not_asked_again(front, house):
    """It may be what ended the replica."""
    house.fates = [1]
    with front() as url:
        found = asked(url)
        assert (found.status_code, found.json()["error"]["message"]) == (503, LOST)
        assert asked(url).status_code == 200
    assert len(house.answers) == 2


def test_a_stream_that_breaks_says_so(front, house):
    house.fates, house.replica.service.loop._engine.step = [2], _slowed(house.replica.service.loop._engine.step)
    with front() as url:
        found = events(asked(url, stream=True))
    assert found[-1] == "[DONE]"
    assert found[-2]["error"]["message"] == LOST
    assert "choices" in found[0]


def _slowed(step):
    def slowed():
        time.sleep(0.05)
        return step()

    return slowed


def test_nobody_waits_for_ever(front, house):
    house.pause = 60.0
    with front(queue_timeout=0.2, stall_timeout=0.2) as url:
        found = asked(url), httpx.get(f"{url}/health")
    assert [one.status_code for one in found] == [503, 503]
    assert all(answer.cancelled for answer in house.answers)


def test_the_end_is_said(front, house):
    """What runs when time is over ends with an error."""
    house.replica.service.loop._engine.step = _slowed(house.replica.service.loop._engine.step)
    with httpx.Client() as web:
        with front(drain_timeout=0.1) as url:
            opened = web.build_request("POST", f"{url}/v1/completions", json={**BODY, "max_tokens": 50, "stream": True})
            answer = web.send(opened, stream=True)
            lines = answer.iter_lines()
            next(lines)
        assert "ending" in json.loads([line for line in lines if line][-2].removeprefix("data: "))["error"]["message"]


def test_a_reader_that_reads_nothing_is_given_up(caplog):
    """R18, B18: once, with a line in the log, and its replica is let go."""

    async def written():
        yield []
        yield [{"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}]
        while True:
            yield [{"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}]

    async def ask():
        never, sent = asyncio.get_running_loop().create_future(), []

        async def send(message):
            sent.append(message["type"])
            if len(sent) > 2:
                await never

        await Forwarded(front, Asked("POST", "/", b"", (), b""), "")({"state": {"id": "one"}}, lambda: never, send)
        return sent

    answer = Answer(written(), 10**9, 0.0)
    front = Front(Replicas(lambda _: answer, None, Gone, None), Settings(port=0, write_timeout=0.1), 8)
    with caplog.at_level(logging.INFO, "forerun.server"):
        sent = asyncio.run(ask())
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]
    assert caplog.messages == ["one gave up a reader that reads nothing"]
    assert answer.cancelled


def test_the_gates_are_before_the_replicas(front, house):
    with front(api_key=("secret",), max_body=1000) as url:
        assert asked(url).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "x" * 2000}, headers=key).status_code == 413
        assert httpx.post(f"{url}/v1/completions", content=b"{}", headers=key).status_code == 415
        assert httpx.get(f"{url}/v1/models", headers={**key, "host": "evil.example"}).status_code == 403
    assert not house.answers


def test_metrics_are_those_of_all(front):
    with front() as url:
        asked(url)
        lines = httpx.get(f"{url}/metrics").text.splitlines()
    assert 'forerun:generation_tokens_total{replica="one"} 6.0' in lines
    assert 'forerun:generation_tokens_total{replica="two"} 6.0' in lines
    assert lines.count("# TYPE forerun:generation_tokens_total counter") == 1


def test_the_router_sees_what_requests_have_in_common(front, house, monkeypatch):
    seen = []
    ask = house.ask
    house.ask = lambda asked: (seen.append(asked.keys), ask(asked))[1]
    with front() as url:
        asked(url, user="me")
        asked(url, user="me")
        httpx.post(f"{url}/v1/completions", content=b"[[[", headers={"content-type": "application/json"})
    assert seen[0] == seen[1] != ()
    assert seen[2] == ()
