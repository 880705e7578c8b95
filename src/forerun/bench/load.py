"""Clients that ask a server for streamed answers, and what they saw.

What comes is kept with its time and read once a load is over: where clients and server share the cores, what the
clients do meanwhile is taken from the server. For the same reason a client keeps its connection, as OpenAI's own does.
Does not: ask again where a connection breaks; that answer has failed.
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

import h11

from forerun.bench.figures import quantile
from forerun.errors import ForerunError

LONG = 512  # tokens of a prompt that is said to be long
SHARES = (0.5, 0.95, 0.99)
_OK, _END = b"HTTP/1.1 200", b"\r\n0\r\n\r\n"  # how a streamed answer begins and ends
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
        frames, rest = h11.Connection(h11.CLIENT), b""
        frames.send(h11.Request(method="POST", target="/", headers=[("host", "")]))
        frames.send(h11.EndOfMessage())
        with contextlib.suppress(h11.RemoteProtocolError):  # what is no HTTP says nothing
            for moment, data in self.heard:
                frames.receive_data(data)
                while (event := frames.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                    if isinstance(event, h11.Response):
                        self.status = event.status_code
                    elif isinstance(event, h11.Data):
                        *lines, rest = (rest + event.data).split(b"\n")
                        for line in lines:
                            if line.startswith(b"data: {"):
                                self._part(moment, json.loads(line.removeprefix(b"data: ")))
        self.heard.clear()
        return self

    def _part(self, moment: float, said: Mapping[str, Any]) -> None:
        if any(choice.get("text") or choice.get("delta", {}).get("content") for choice in said.get("choices", ())):
            self.parts.append(moment)
        self.tokens = (said.get("usage") or {}).get("completion_tokens", self.tokens)


class _Line(asyncio.BufferedProtocol):
    """A connection over which one request is asked after the other.

    All is read into one place, as to make room costs more than to read.
    """

    room = memoryview(bytearray(1 << 16))

    def __init__(self, url: str) -> None:
        self._place, self._transport = urlsplit(url), cast("asyncio.Transport | None", None)
        self._answer, self._over, self._last = Answer(0.0), cast("asyncio.Future[None] | None", None), b""

    async def heard(self, body: Body) -> Answer:
        """One streamed answer, not read yet: to messages where the body has some, else the rest of a text."""
        raw, home = json.dumps(body).encode(), asyncio.get_running_loop()
        what = "chat/completions" if "messages" in body else "completions"
        head = f"POST {self._place.path}/v1/{what} HTTP/1.1\r\nHost: {self._place.netloc}\r\n"
        kind = f"Content-Length: {len(raw)}\r\nContent-Type: application/json\r\n\r\n"
        self._answer = answer = Answer(perf_counter(), prompt=length(body))
        with contextlib.suppress(OSError):  # an answer that did not come is counted
            if self._transport is None or self._transport.is_closing():
                await home.create_connection(lambda: self, self._place.hostname or "", self._place.port or 80)
            self._over, self._last = home.create_future(), b""
            cast("asyncio.Transport", self._transport).write((head + kind).encode() + raw)
            await self._over
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, _: int) -> memoryview:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self.room[:nbytes])
        self._answer.heard.append((perf_counter(), data))
        self._last = (self._last + data[-len(_END) :])[-len(_END) :]
        refused = len(self._answer.heard) == 1 and not data.startswith(_OK)
        if refused:
            self.close()  # its length is not worth reading
        if refused or self._last == _END:
            self._done()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()

    def _done(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


def length(body: Body) -> int:
    """Tokens of a prompt that is given as tokens; 0: nobody counted."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) else 0


async def ask(url: str, body: Body) -> Answer:
    """One streamed answer."""
    return (await closed(url, [body], 1))[0]


async def closed(url: str, bodies: Sequence[Body], clients: int) -> list[Answer]:
    """Every body once, so many at a time."""
    waiting = iter(bodies)

    async def client() -> list[Answer]:
        with contextlib.closing(_Line(url)) as line:
            return [await line.heard(body) for body in waiting]

    found = await asyncio.gather(*(client() for _ in range(clients)))
    return [answer.read() for answers in found for answer in answers]


async def opened(url: str, bodies: Sequence[Body], moments: Sequence[float]) -> list[Answer]:
    """Every body at its moment, seconds from now, whether the server keeps up or not."""
    free: list[_Line] = []

    async def later(body: Body, moment: float) -> Answer:
        await asyncio.sleep(moment)
        line = free.pop() if free else _Line(url)
        try:
            return await line.heard(body)
        finally:
            free.append(line)

    try:
        found = await asyncio.gather(*(later(*each) for each in zip(bodies, moments, strict=True)))
    finally:
        for line in free:
            line.close()
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
