"""`forerun bench soak`: a server under clients of every kind at once, and what they leave behind.

Most clients stream; others leave at any moment, send half a request and fall silent, read a few bytes at a time, want
an answer that fits a schema, want four, or send what is wrong or too large. Every text is compared with the library's,
token for token. Behind them, the server's cache, files and tasks are as they were before the first.
Does not: measure speed; use another model than a toy; know more of memory than its resident set, in which the clients'
own is contained.
"""

import asyncio
import gc
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from forerun import LLM, Sampling
from forerun.bench import machine
from forerun.models.tokenizer import ToyTokenizer
from forerun.models.toy import ToyModel
from forerun.server.run import in_background
from forerun.server.settings import Settings
from forerun.types import Constraint

SHARES = {  # of a hundred, and what each does
    "stream": 40,
    "leaves": 20,  # at any moment
    "whole": 10,  # waits for the whole answer
    "schema": 10,
    "half": 5,  # sends half a request
    "slow": 5,  # reads slowly
    "several": 5,  # wants four texts
    "wrong": 3,
    "large": 2,
}
WORDS = (*"abcdefl01", "{", "}", "[", "]", '"', ",", ":", " ", "-", ".", "tr", "ue", "fal", "se", "null")
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "array", "items": {"enum": [0, 1, "abc", True]}, "maxItems": 4},
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["abc", "cab"]}}, "required": ["a"]},
    {"type": "object", "properties": {"d": {"type": "null"}}, "additionalProperties": False},
)
CONTEXT, MAX_BODY = 600, 8192
SETTINGS = Settings(port=0, max_body=MAX_BODY, read_timeout=2.0, write_timeout=20.0)
WARM = 64  # requests before anything is counted
STEADY = 2000  # requests after which memory should not grow
DEADLINE = 120.0  # seconds of one request; what takes longer hangs
MARK = 500  # requests between two looks at it
GROWTH = 0.05  # of resident memory
FILES = 2  # that may be open beyond those before
PATIENCE = 30.0  # seconds in which all must be given back
_SIP, _PAUSE = 64, 0.001  # bytes and seconds of a slow reader


@dataclass(frozen=True)
class Order:
    """How much of it."""

    requests: int = 10_000
    clients: int = 64


@dataclass
class Answer:
    """What one client saw; no status where it left, or was hung up on."""

    status: int = 0
    texts: list[str] = field(default_factory=list)
    whole: bool = False  # a stream that said [DONE], or a body that is JSON


@dataclass(frozen=True)
class Request:
    """One of the plan; the same every time."""

    kind: str
    body: Mapping[str, Any]
    rng: random.Random

    @property
    def sampling(self) -> Sampling:
        """What the library is told."""
        held = self.body.get("guided_json")
        names = ("seed", "max_tokens", "temperature")
        constraint = Constraint("json_schema", json.dumps(held)) if held is not None else None
        return Sampling(**{name: self.body[name] for name in names}, constraint=constraint)


def planned(number: int) -> Request:
    """Request `number`."""
    rng = random.Random(number)  # noqa: S311 - a plan, not a secret
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    body = {
        "prompt": "".join(rng.choices("abcdef", k=rng.randint(1, 12))),
        "seed": number,
        "max_tokens": rng.randint(1, 24),
        "temperature": rng.choice([0.0, 1.0]),
        "n": 4 if kind == "several" else 1,
        "stream": kind in {"stream", "slow"} or (kind in {"leaves", "schema"} and rng.random() < 0.5),  # noqa: PLR2004
    }
    if kind == "schema":
        body["guided_json"] = rng.choice(SCHEMAS)
    if kind in {"leaves", "slow"}:
        body["max_tokens"] = 200
    return Request(kind, body, rng)


# clients


def _raw(request: Request) -> bytes:
    """The whole request as it is sent, wrong and large ones too."""
    body: dict[str, Any] = dict(request.body)
    if request.kind == "wrong":
        body |= request.rng.choice([{"temperature": -1}, {"max_token": 1}, {"prompt": 7}, {"logit_bias": {"99": 1}}])
    if request.kind == "large":
        body["prompt"] = "a" * request.rng.choice([CONTEXT, 2 * MAX_BODY])
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + content


async def ask(url: str, request: Request) -> Answer:
    """As the client of this kind does."""
    place = urlsplit(url)
    raw, held = _raw(request), socket.socket()
    held.setblocking(False)  # noqa: FBT003 - the socket's own interface
    if request.kind == "slow":
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least that the system gives
    try:
        await asyncio.get_running_loop().sock_connect(held, (place.hostname, place.port))
        reader, writer = await asyncio.open_connection(sock=held, limit=_SIP if request.kind == "slow" else 2**16)
        try:
            return await _talk(request, raw, reader, writer)
        finally:
            writer.transport.abort()  # who leaves does not say so
    except ConnectionError:
        return Answer()


async def _talk(request: Request, raw: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
    rng = request.rng
    sent = rng.randrange(len(raw)) if request.kind == "half" else len(raw)
    writer.write(raw[:sent])
    if request.kind == "leaves":
        await asyncio.sleep(rng.choice([0.0, 0.002, 0.02, 0.2]) * rng.random())
        if rng.random() < 0.5:  # noqa: PLR2004
            await reader.read(rng.randrange(1, 2000))
        return Answer()
    if request.kind != "slow":
        return _read(await reader.read())
    found = b""
    while sip := await reader.read(_SIP):
        found += sip
        await asyncio.sleep(_PAUSE)
    return _read(found)


def _read(raw: bytes) -> Answer:
    """What a whole answer says, streamed or not."""
    head, _, content = raw.partition(b"\r\n\r\n")
    if not head:
        return Answer()
    answer = Answer(int(head.split()[1]))
    if b"event-stream" in head:
        lines = content.decode().split("\n\n")
        parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        answer.texts = ["".join(choice["text"] for part in parts for choice in part.get("choices", ()))]
        answer.whole = lines[-2:] == ["data: [DONE]", ""]
    else:
        said = json.loads(content)
        answer.texts = [choice["text"] for choice in said.get("choices", ())]
        answer.whole = True
    return answer


# what is left behind


@dataclass(frozen=True)
class Left:
    """What a server holds while nobody asks."""

    cache: int  # rows that are free
    files: int
    tasks: int


def left(llm: LLM) -> Left:
    """Now."""
    gc.collect()
    tasks = sum(issubclass(type(held), asyncio.Task) and not held.done() for held in gc.get_objects())
    return Left(llm.engine.cache.free(), sum(1 for _ in Path("/proc/self/fd").iterdir()), tasks)


def resident() -> int:
    """Bytes of memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


async def _settled(llm: LLM, wanted: Left | None = None) -> Left:
    """Once nothing runs, and all is as wanted; or as it is after a while."""
    until = perf_counter() + PATIENCE
    while True:
        found = left(llm)
        if (not llm.engine.requests and (wanted is None or _same(wanted, found))) or perf_counter() > until:
            return found
        await asyncio.sleep(0.1)


def _same(before: Left, after: Left) -> bool:
    return before.cache == after.cache and after.tasks <= before.tasks and after.files <= before.files + FILES


# all of it


@dataclass
class Soak:
    """One run against one server."""

    url: str
    order: Order
    answers: dict[int, Answer | None] = field(default_factory=dict)  # None: it hangs
    memory: list[int] = field(default_factory=list)  # once it is steady

    async def run(self, first: int, count: int) -> None:
        """So many requests, so many at a time."""
        waiting = iter(range(first, first + count))
        await asyncio.gather(*(self._client(waiting) for _ in range(self.order.clients)))

    async def _client(self, waiting: Iterator[int]) -> None:
        for number in waiting:
            if number >= STEADY and number % MARK == 0:
                self.memory.append(resident())
            self.answers[number] = None
            try:
                async with asyncio.timeout(DEADLINE):
                    self.answers[number] = await ask(self.url, planned(number))
            except TimeoutError:
                continue


def expected(library: LLM, request: Request) -> Answer:
    """What a client should see of a request that does not leave."""
    if request.kind == "wrong":
        return Answer(400, whole=True)
    if request.kind == "large":
        return Answer(400 if len(_raw(request)) < MAX_BODY else 413, whole=True)
    found = library.generate(request.body["prompt"], request.sampling, request.body["n"])
    return Answer(200, [result.text for result in found], whole=True)


def right(library: LLM, number: int, answer: Answer | None) -> bool:
    """Whether it is what it should be."""
    request = planned(number)
    if answer is None:
        return False
    if request.kind == "leaves":
        return answer == Answer()
    if request.kind == "half":
        return answer.status in {0, 408}
    return answer == expected(library, request)


def run(order: Order) -> dict[str, Any]:
    """Start a server, ask it, and look."""
    model, tokenizer = ToyModel(context_length=CONTEXT, words=WORDS), ToyTokenizer(*WORDS)
    settings: dict[str, Any] = {"threads": 1, "profiles": "off", "drafter": "ngram", "cache": "paged"}
    llm = LLM(model, tokenizer, max_requests=16, **settings)

    async def soak(url: str) -> tuple[Soak, Left, Left]:
        warm, soak = Soak(url, order), Soak(url, order)
        await warm.run(order.requests, WARM)
        before = await _settled(llm)
        await soak.run(0, order.requests)
        return soak, before, await _settled(llm, before)

    began = perf_counter()
    with in_background(llm, SETTINGS) as url:
        found, before, after = asyncio.run(soak(url))
    seconds = perf_counter() - began
    llm.engine.cache.check()
    return _report(order, found, (before, after), seconds, LLM(model, tokenizer, **settings))


def _report(order: Order, soak: Soak, held: tuple[Left, Left], seconds: float, library: LLM) -> dict[str, Any]:
    before, after = held
    asked, wrong = Counter[str](), Counter[str]()
    for number, answer in soak.answers.items():
        kind = planned(number).kind
        asked[kind] += 1
        wrong[kind] += not right(library, number, answer)
    answers = list(soak.answers.values())
    growth = max(soak.memory) / soak.memory[0] - 1 if soak.memory else None
    sound = not wrong.total() and _same(before, after) and (growth or 0) <= GROWTH
    report = {
        "title": "A server under clients of every kind at once",
        "benchmark": "soak",
        **machine.circumstances(),
        "machine": machine.facts(),
        "requests": order.requests,
        "clients": order.clients,
        "seconds": seconds,
        "kinds": {kind: {"requests": asked[kind], "wrong": wrong[kind]} for kind in SHARES},
        "hanging": answers.count(None),
        "server_errors": sum(answer is not None and answer.status >= 500 for answer in answers),  # noqa: PLR2004
        "left": {name: [getattr(one, name) for one in held] for name in ("cache", "files", "tasks")},
        "resident_bytes": soak.memory,
        "growth": growth,
        "sound": sound,
    }
    return {**report, "notes": [summary(report)]}


def summary(report: Mapping[str, Any]) -> str:
    """What went wrong and what was left behind, in a sentence."""
    before, after = zip(*report["left"].values(), strict=True)
    told = f"{report['hanging']} requests hang, and {report['server_errors']} got an error of the server"
    kept = f"free rows, open files and tasks were {before} before and are {after} after"
    grown = "not measured" if report["growth"] is None else f"{report['growth']:+.1%}"
    return f"{told}; {kept}; growth of memory from request {STEADY:,} on: {grown}."


def show(found: Mapping[str, Any]) -> None:
    """A row per kind of client, and what was left."""
    console, table = Console(highlight=False), Table(title=found["title"], title_justify="left")
    for name in ("kind of client", "requests", "wrong"):
        table.add_column(name, justify="left" if name == "kind of client" else "right")
    for kind, counts in found["kinds"].items():
        table.add_row(kind, str(counts["requests"]), str(counts["wrong"]))
    console.print(table)
    for note in found["notes"]:
        console.print(note, markup=False)
