"""R26: the laws of an answer can fail; every known way to answer wrongly breaks the one that is meant for it."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from forerun import LLM, Sampling
from forerun.engine import engine
from forerun.engine.text import StopFinder
from forerun.models.toy import ToyModel
from forerun.server import loop, refusal, reply, service, shapes
from forerun.server.run import in_background
from forerun.server.settings import Settings

PROMPTS = ["abab", "ba", "cdcd", "fedcba"]
ASKED = {"max_tokens": 24, "seed": 5}


def toy(**keywords):
    return LLM(ToyModel(6, context_length=200), threads=1, profiles="off", **keywords)


@pytest.fixture(scope="module")
def web():
    with in_background(toy(max_requests=4), Settings(port=0)) as url, httpx.Client(base_url=url, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def library():
    return toy()


def streamed(web, **fields):
    """The parts of a stream that is one: events, each with its blank line, and [DONE] once, last."""
    *events, last, rest = web.post("/v1/completions", json={**ASKED, **fields, "stream": True}).text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def whole(web, library):
    """Texts, reasons, seeds and counts are the library's."""
    answer = web.post("/v1/completions", json={**ASKED, "prompt": PROMPTS, "n": 2}).json()
    wanted = library.generate(PROMPTS, Sampling(**ASKED), 2)
    assert [c["text"] for c in answer["choices"]] == [r.text for r in wanted]
    assert [c["finish_reason"] for c in answer["choices"]] == [r.finish_reason for r in wanted]
    assert [c["seed"] for c in answer["choices"]] == [r.seed for r in wanted]
    assert answer["usage"]["completion_tokens"] == sum(len(r.tokens) for r in wanted)
    assert answer["usage"]["prompt_tokens"] == sum(len(r.prompt_tokens) for r in wanted[::2])


def stream(web, library):
    """Parts add up to the library's texts, each choice says its end once, and usage stands at the end."""
    parts = streamed(web, prompt="abab", n=3, stream_options={"include_usage": True})
    wanted = library.generate("abab", Sampling(**ASKED), 3)
    choices = [c for part in parts for c in part["choices"]]
    assert ["".join(c["text"] for c in choices if c["index"] == i) for i in range(3)] == [r.text for r in wanted]
    ends = {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]}
    assert ends == {i: r.finish_reason for i, r in enumerate(wanted)}
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == sum(len(r.tokens) for r in wanted)


def stop(web, library):
    """A stop string ends the text before itself."""
    free = library.generate("abab", Sampling(**ASKED))[0].text
    held = free[9:11]
    answer = web.post("/v1/completions", json={**ASKED, "prompt": "abab", "stop": held}).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == (free[: free.index(held)], "stop")


def neighbours(web, library):
    """Streams at once have the texts that they have alone."""
    wanted = [result.text for result in library.generate(PROMPTS, Sampling(**ASKED))]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = pool.map(lambda prompt: streamed(web, prompt=prompt), PROMPTS * 4)
        assert ["".join(part["choices"][0]["text"] for part in parts) for parts in found] == wanted * 4


def logprobs(web, library):
    """One of each token, the library's."""
    answer = web.post("/v1/completions", json={**ASKED, "prompt": "abab", "logprobs": 2}).json()["choices"][0]
    (wanted,) = library.generate("abab", Sampling(**ASKED, logprobs=2))
    assert answer["logprobs"]["token_logprobs"] == pytest.approx([p.value for p in wanted.logprobs], abs=1e-5)
    assert "".join(answer["logprobs"]["tokens"]) == answer["text"] == wanted.text


def errors(web, library):
    """What is wrong is refused, with the field."""
    answer = web.post("/v1/completions", json={**ASKED, "prompt": "abab", "temprature": 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temprature")


LAWS = [whole, stream, stop, neighbours, logprobs, errors]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_server_keeps_the_law(law, web, library):
    law(web, library)


class Echoing(reply.Told):
    """Tells a text again with the next one."""

    def take(self):
        text = "".join(self.text)
        return text, []


class Hasty(reply.Told):
    """Ends without what came with the end."""

    def take(self):
        text, calls = super().take()
        return ("" if self.last is not None else text), calls


class Mistaken(reply.Told):
    """Every end is a stop."""

    @property
    def reason(self):
        return "stop" if self.last is not None else None


class Shifted(shapes.CompletionReport):
    """Numbers of the token before."""

    def of(self, emissions):
        return super().of([e._replace(logprob=emissions[i - 1].logprob) for i, e in enumerate(emissions)])


def mixed(queue, events, right=loop.EngineLoop._tell):
    """What one request wrote in a step is told to the next one."""
    right(queue, [event._replace(text=events[i - 1].text) for i, event in enumerate(events)])


async def confused(answer, right=reply.Reply._read):
    """News of one choice is told as the next one's."""
    count, read = len(answer.told), answer.ticket.read

    async def turned():
        return [((index + 1) % count, event) for index, event in await read()]

    answer.ticket.read = turned
    try:
        return await right(answer)
    finally:
        answer.ticket.read = read


def counted(prompt, written, cached, right=shapes.usage):
    """Forgets the last token."""
    return right(prompt, written - 1, cached)


def unended(value, right=reply.encode):
    """Without the blank line."""
    return right(value).removesuffix(b"\n")


MUTANTS = {
    "lost usage": (whole, reply, "usage", counted),
    "lost usage of a stream": (stream, reply, "usage", counted),
    "a wrong reason": (whole, reply, "Told", Mistaken),
    "a wrong reason in a stream": (stream, reply, "Told", Mistaken),
    "no [DONE]": (stream, reply, "DONE", b""),
    "events that do not end": (stream, reply, "encode", unended),
    "a seed that is ignored": (whole, service, "sample_seed", lambda _, index: 7 + index),
    "a stop string that leaks": (stop, engine, "StopFinder", lambda _: StopFinder(())),
    "another request's text": (neighbours, loop.EngineLoop, "_tell", mixed),
    "another choice's text": (stream, reply.Reply, "_read", confused),
    "text told twice": (stream, reply, "Told", Echoing),
    "an end that is lost": (stream, reply, "Told", Hasty),
    "another token's numbers": (logprobs, shapes.CompletionShape, "report", Shifted),
    "an error that says 200": (errors, refusal.Refusal, "response", lambda problem: reply.JSONResponse(problem.body)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_server_is_seen(name, web, library, monkeypatch):
    law, owner, part, wrong = MUTANTS[name]
    monkeypatch.setattr(owner, part, wrong)
    with pytest.raises((AssertionError, ValueError), match=r"assert|unpack"):
        law(web, library)
    monkeypatch.undo()
    law(web, library)
