"""Clients that ask a server for streamed completions, and what they saw.

Does not: keep connections; a request opens its own, as HTTP/1.0, whose answer ends where the connection does.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from forerun.bench.figures import quantile
from forerun.errors import ForerunError

SHARES = (0.5, 0.95, 0.99)
Body = Mapping[str, Any]


@dataclass
class Answer:
    """One request as its client saw it; times in seconds."""

    asked: float
    status: int = 0
    parts: list[float] = field(default_factory=list)  # when text came
    tokens: int = 0

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


async def ask(url: str, body: Body) -> Answer:
    """One streamed completion."""
    place, raw, answer = urlsplit(url), json.dumps(body).encode(), Answer(perf_counter())
    with contextlib.suppress(OSError):  # an answer that did not come is counted
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            head = (
                f"POST {place.path}/v1/completions HTTP/1.0\r\nHost: {place.netloc}\r\nContent-Length: {len(raw)}\r\n"
            )
            writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + raw)
            await _hear(reader, answer)
        finally:
            writer.close()
    return answer


async def _hear(reader: asyncio.StreamReader, answer: Answer) -> None:
    words = (await reader.readline()).split()
    answer.status = int(words[1]) if len(words) > 1 else 0
    while (await reader.readline()).strip():
        pass
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        part = json.loads(line.removeprefix(b"data: "))
        if any(choice["text"] for choice in part.get("choices", ())):
            answer.parts.append(perf_counter())
        answer.tokens = (part.get("usage") or {}).get("completion_tokens", answer.tokens)


async def closed(url: str, bodies: Sequence[Body], clients: int) -> list[Answer]:
    """Every body once, so many at a time."""
    waiting = iter(bodies)

    async def client() -> list[Answer]:
        return [await ask(url, body) for body in waiting]

    return [answer for found in await asyncio.gather(*(client() for _ in range(clients))) for answer in found]


async def opened(url: str, bodies: Sequence[Body], moments: Sequence[float]) -> list[Answer]:
    """Every body at its moment, seconds from now, whether the server keeps up or not."""

    async def later(body: Body, moment: float) -> Answer:
        await asyncio.sleep(moment)
        return await ask(url, body)

    return list(await asyncio.gather(*(later(*each) for each in zip(bodies, moments, strict=True))))


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
