"""Clients that ask a server for streamed completions, and what they saw.

What comes is kept with its time and read once a load is over: where clients and server share the cores, what the
clients do meanwhile is taken from the server.
Does not: keep connections; a request opens its own, as HTTP/1.0, whose answer ends where the connection does.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, cast
from urllib.parse import urlsplit

from forerun.bench.figures import quantile
from forerun.errors import ForerunError

LONG = 512  # tokens of a prompt that is said to be long
SHARES = (0.5, 0.95, 0.99)
Body = Mapping[str, Any]


@dataclass
class Answer:
    """One request as its client saw it; times in seconds."""

    asked: float
    status: int = 0
    prompt: int = 0  # tokens of it, where it was given as such
    parts: list[float] = field(default_factory=list)  # when text came
    tokens: int = 0
    heard: list[tuple[float, bytes]] = field(default_factory=list)  # as it came, and not read yet

    @property
    def ttft(self) -> float:
        return self.parts[0] - self.asked

    @property
    def tpot(self) -> float:
        return (self.parts[-1] - self.parts[0]) / max(1, self.tokens - 1)

    @property
    def sound(self) -> bool:
        """Whether all of it came."""
        return self.status == 200 and bool(self.parts) and self.tokens > 0  # noqa: PLR2004 - OK

    def read(self) -> "Answer":
        """Make of what was heard what it says."""
        head, rest = True, b""
        for moment, data in self.heard:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if self.status == 0:
                    words = line.split()
                    self.status = int(words[1]) if len(words) > 1 else 0
                elif head:
                    head = bool(line.strip())
                elif line.startswith(b"data: {"):
                    self._part(moment, json.loads(line.removeprefix(b"data: ")))
        self.heard.clear()
        return self

    def _part(self, moment: float, said: Mapping[str, Any]) -> None:
        if any(choice["text"] for choice in said.get("choices", ())):
            self.parts.append(moment)
        self.tokens = (said.get("usage") or {}).get("completion_tokens", self.tokens)


class _Client(asyncio.BufferedProtocol):
    """Sends a request and hears what comes of it; all read into one place, as to make room costs more than to read."""

    room = memoryview(bytearray(1 << 16))

    def __init__(self, request: bytes, answer: Answer, over: asyncio.Future[None]) -> None:
        self.request, self.answer, self.over = request, answer, over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self.request)

    def get_buffer(self, _: int) -> memoryview:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.answer.heard.append((perf_counter(), bytes(self.room[:nbytes])))

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(None)


def length(body: Body) -> int:
    """Tokens of a prompt that is given as tokens; 0: nobody counted."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) else 0


async def _heard(url: str, body: Body) -> Answer:
    """One streamed completion, not read yet."""
    place, raw, home = urlsplit(url), json.dumps(body).encode(), asyncio.get_running_loop()
    head = f"POST {place.path}/v1/completions HTTP/1.0\r\nHost: {place.netloc}\r\nContent-Length: {len(raw)}\r\n"
    request = head.encode() + b"Content-Type: application/json\r\n\r\n" + raw
    answer, over = Answer(perf_counter(), prompt=length(body)), home.create_future()
    with contextlib.suppress(OSError):  # an answer that did not come is counted
        await home.create_connection(lambda: _Client(request, answer, over), place.hostname or "", place.port or 80)
        await over
    return answer


async def ask(url: str, body: Body) -> Answer:
    """One streamed completion."""
    return (await _heard(url, body)).read()


async def closed(url: str, bodies: Sequence[Body], clients: int) -> list[Answer]:
    """Every body once, so many at a time."""
    waiting = iter(bodies)

    async def client() -> list[Answer]:
        return [await _heard(url, body) for body in waiting]

    found = await asyncio.gather(*(client() for _ in range(clients)))
    return [answer.read() for answers in found for answer in answers]


async def opened(url: str, bodies: Sequence[Body], moments: Sequence[float]) -> list[Answer]:
    """Every body at its moment, seconds from now, whether the server keeps up or not."""

    async def later(body: Body, moment: float) -> Answer:
        await asyncio.sleep(moment)
        return await _heard(url, body)

    found = await asyncio.gather(*(later(*each) for each in zip(bodies, moments, strict=True)))
    return [answer.read() for answer in found]


def figures(answers: Sequence[Answer], ttft_ms: float, tpot_ms: float) -> dict[str, Any]:
    """What one load came to; goodput counts the answers that met both objectives."""
    sound = [a for a in answers if a.sound]
    if not sound:
        status = sorted({a.status for a in answers})
        raise ForerunError(f"no request was answered (HTTP {status}); check --url, or ask for less.")
    seconds = max(a.parts[-1] for a in sound) - min(a.asked for a in answers)
    good = [a for a in sound if a.ttft * 1e3 <= ttft_ms and a.tpot * 1e3 <= tpot_ms]
    gaps = [later - sooner for a in sound for sooner, later in pairwise(a.parts)] or [0.0]
    spread = {"ttft": [a.ttft for a in sound], "tpot": [a.tpot for a in sound], "itl": gaps}
    for name, some in (
        ("short", [a for a in sound if a.prompt < LONG]),
        ("long", [a for a in sound if a.prompt >= LONG]),
    ):
        if 0 < len(some) < len(sound):
            spread[f"ttft_{name}"] = [a.ttft for a in some]
    return {
        "requests": len(answers),
        "failed": len(answers) - len(sound),
        "seconds": seconds,
        "tokens_per_second": sum(a.tokens for a in sound) / seconds,
        "requests_per_second": len(sound) / seconds,
        "goodput": len(good) / seconds,
        **{
            f"{name}_ms": {f"p{share * 100:g}": 1e3 * quantile(values, share) for share in SHARES}
            for name, values in spread.items()
        },
    }
