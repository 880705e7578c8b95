"""R13, R10 in small: hundreds of requests of every kind at once; no wrong token, no hang, nothing left behind."""

import asyncio
import gc
import json
import random
import threading
from pathlib import Path

import httpx

from forerun import LLM, Sampling
from forerun.models.toy import ToyModel

REQUESTS, AT_ONCE = 300, 32
KINDS = ["stream"] * 8 + ["whole"] * 4 + ["leave"] * 4 + ["several", "wrong", "large", "unknown"]


def plan(i):
    """Kind and body of request `i`; the same every time."""
    rng = random.Random(i)  # noqa: S311 - a plan, not a secret
    prompt = "".join(rng.choices("abcdef", k=rng.randint(1, 12)))
    settings = {"seed": i, "max_tokens": rng.randint(1, 40), "temperature": rng.choice([0.0, 1.0])}
    return rng.choice(KINDS), prompt, settings


async def ask(web, i):
    """(status, texts) as one client sees them; None for one that leaves."""
    kind, prompt, settings = plan(i)
    body = {"prompt": prompt, **settings, "n": 4 if kind == "several" else 1, "stream": kind in {"stream", "leave"}}
    if kind in {"wrong", "large", "unknown"}:
        wrong = {"wrong": {"temperature": -1}, "large": {"prompt": "a" * 9000}, "unknown": {"max_token": 1}}
        return (await web.post("/v1/completions", json={**body, **wrong[kind]})).status_code, []
    if kind == "leave":
        with_room = {**body, "max_tokens": 400}
        async with web.stream("POST", "/v1/completions", json=with_room) as found:
            async for _ in found.aiter_lines():
                return None
            return found.status_code, []
    if not body["stream"]:
        found = await web.post("/v1/completions", json=body)
        return found.status_code, [c["text"] for c in found.json()["choices"]]
    text = last = ""
    async with web.stream("POST", "/v1/completions", json=body) as found:
        async for line in found.aiter_lines():
            last = line or last
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert last == "data: [DONE]"
    return found.status_code, [text]


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def serving_threads():
    """Of this server or another test's."""
    return {thread for thread in threading.enumerate() if thread.name in {"forerun-engine", "forerun-server"}}


def test_hundreds_of_requests_leave_nothing_behind(serving, eventually):
    llm = LLM(ToyModel(6, context_length=600), threads=1, profiles="off", cache="paged", max_requests=8)
    room, files, others = llm.engine.cache.free(), open_files(), serving_threads()

    async def main(url):
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as web:
            return await asyncio.gather(*(ask(web, i) for i in range(REQUESTS)))

    with serving(llm, max_body=4096) as url:
        answers = asyncio.run(main(url))
        eventually(lambda: not llm.engine.requests)
        llm.engine.cache.check()
        metrics = httpx.get(f"{url}/metrics").text
    assert llm.engine.cache.free() == room
    assert "forerun:num_requests_running 0.0" in metrics
    gc.collect()
    assert open_files() <= files + 2
    assert serving_threads() <= others

    library = LLM(ToyModel(6, context_length=600), threads=1, profiles="off")
    wrong, seen = [], set()
    for i, answer in enumerate(answers):
        kind, prompt, settings = plan(i)
        seen.add(kind)
        if kind in {"wrong", "large", "unknown"}:
            expected = 413 if kind == "large" else 400, []
        elif kind == "leave":
            expected = None
        else:
            n = 4 if kind == "several" else 1
            expected = 200, [r.text for r in library.generate(prompt, Sampling(**settings), n)]
        wrong += [] if answer == expected else [(i, kind, answer, expected)]
    assert not wrong
    assert seen == set(KINDS)
