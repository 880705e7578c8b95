"""`forerun bench serve`: a server under load, as its clients see it.

Closed loop: so many clients, each asks again as soon as it is answered. Open loop: requests arrive at random (Poisson)
at a given rate, whether the server keeps up or not. Every answer is streamed. TTFT is the time to the first part with
text, TPOT the time per token after it, ITL the time between two parts; goodput counts answers that met both objectives.
Does not: keep connections; a request opens its own, as HTTP/1.0, whose answer ends where the connection does.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from forerun.bench import machine, workloads
from forerun.bench.figures import quantile
from forerun.errors import ForerunError

SHARES = (0.5, 0.95, 0.99)
_WIDE = 140  # where the output is no terminal
TOKENS = 64  # per answer, unless told otherwise


@dataclass(frozen=True)
class Order:
    """What to ask of whom."""

    url: str | None = None  # of a server that runs; None: one is started
    concurrency: Sequence[int] = (1, 4, 16)
    rate: Sequence[float] = ()  # requests per second; instead of concurrency
    requests: int = 64  # at each load
    ttft_ms: float = 500.0  # objectives
    tpot_ms: float = 50.0


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


async def ask(url: str, body: Mapping[str, Any]) -> Answer:
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


async def closed(url: str, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[Answer]:
    """Every body once, so many at a time."""
    waiting = iter(bodies)

    async def client() -> list[Answer]:
        return [await ask(url, body) for body in waiting]

    return [answer for found in await asyncio.gather(*(client() for _ in range(clients))) for answer in found]


async def opened(url: str, bodies: Sequence[Mapping[str, Any]], rate: float) -> list[Answer]:
    """Every body once, at random moments; the same ones every time."""
    gaps = np.random.default_rng(0).exponential(1 / rate, len(bodies))
    asked: list[asyncio.Task[Answer]] = []
    for body, gap in zip(bodies, gaps, strict=True):
        await asyncio.sleep(float(gap))
        asked.append(asyncio.create_task(ask(url, body)))
    return list(await asyncio.gather(*asked))


def figures(answers: Sequence[Answer], order: Order) -> dict[str, Any]:
    """What one load came to."""
    sound = [a for a in answers if a.sound]
    if not sound:
        status = sorted({a.status for a in answers})
        raise ForerunError(f"no request was answered (HTTP {status}); check --url, or ask for less.")
    seconds = max(a.parts[-1] for a in sound) - min(a.asked for a in answers)
    good = [a for a in sound if a.ttft * 1e3 <= order.ttft_ms and a.tpot * 1e3 <= order.tpot_ms]
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


@contextlib.asynccontextmanager
async def served(order: Order, config: Mapping[str, Any]) -> AsyncIterator[str]:
    """The address of the server that is measured; one of our own ends with the block."""
    if order.url is not None:
        yield order.url.rstrip("/")
        return
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in config.items() if name != "model"]
    model = [config["model"]] if "model" in config else []
    command = [sys.executable, "-c", "from forerun.cli import main; main()", "serve", *model, "--port=0", *flags]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    log = child.stderr or asyncio.StreamReader()
    said = b""
    while b" at http" not in said:
        said = await log.readline()
        if not said:
            raise ForerunError(f"the server ended with code {await child.wait()}; try forerun serve with these flags.")
    reading = asyncio.create_task(log.read())  # its log, which would fill the pipe
    try:
        yield said.decode().split()[-1]
    finally:
        child.terminate()
        await child.wait()
        await reading


def run(order: Order, config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Every load, one after the other, behind a few requests that warm up."""
    prompts = workloads.load(["story"], order.requests)
    settings = {"max_tokens": TOKENS, **sampling, "stream": True, "stream_options": {"include_usage": True}}
    bodies = [{"prompt": prompts[i % len(prompts)].text, **settings} for i in range(order.requests)]

    async def measure() -> list[dict[str, Any]]:
        async with served(order, config) as url:
            await closed(url, bodies[:4], 1)
            if order.rate:
                return [{"rate": r, **figures(await opened(url, bodies, r), order)} for r in order.rate]
            return [{"concurrency": c, **figures(await closed(url, bodies, c), order)} for c in order.concurrency]

    goals = {"ttft_ms": order.ttft_ms, "tpot_ms": order.tpot_ms}
    loads = asyncio.run(measure())
    return {**machine.circumstances(), "machine": machine.facts(), "goals": goals, "loads": loads}


def show(found: Mapping[str, Any]) -> None:
    """A row per load."""
    console, goals = Console(width=None if Console().is_terminal else _WIDE, highlight=False), found["goals"]
    caption = f"goodput: answers per second with ttft <= {goals['ttft_ms']:g} ms and tpot <= {goals['tpot_ms']:g} ms"
    table = Table(title="a server under load; ms are p50 / p95 / p99", caption=caption, title_justify="left")
    for name in ("load", "tokens/s", "requests/s", "goodput", "failed", "ttft ms", "tpot ms", "itl ms"):
        table.add_column(name, justify="right")
    for load in found["loads"]:
        name = f"{load['rate']:g}/s" if "rate" in load else f"{load['concurrency']} clients"
        speeds = (f"{load[key]:.4g}" for key in ("tokens_per_second", "requests_per_second", "goodput"))
        times = (" / ".join(f"{v:.3g}" for v in load[key].values()) for key in ("ttft_ms", "tpot_ms", "itl_ms"))
        table.add_row(name, *speeds, str(load["failed"]), *times)
    console.print(table)
