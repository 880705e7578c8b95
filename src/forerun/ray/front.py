"""What listens: the server's gates and limits, and behind them a replica for every request.

A request whose replica ends before it began is asked of another; one that had begun ends with an error, never
in silence.
Does not: read or change an answer, but for /metrics, which is that of all replicas.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from fastapi import FastAPI, Request
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from forerun.ray.affinity import keys_of
from forerun.ray.replica import Asked
from forerun.server.accounts import Accounts
from forerun.server.app import gated
from forerun.server.body import body_of
from forerun.server.limits import Admission
from forerun.server.refusal import Refusal, broken, unavailable
from forerun.server.settings import Settings
from forerun.server.sse import DONE, encode, unless_gone

_LOG = logging.getLogger("forerun.server")
_TRIES = 4  # replicas that may end under a request before it began
_SOON = 1  # seconds
LOST = "the replica that wrote this has ended; ask again."


class Unread(Exception):  # noqa: N818 - news, not a fault
    """The client takes nothing."""


class Parts(Protocol):
    """An answer as it comes from a replica: lists of ASGI messages."""

    async def __anext__(self) -> list[Message]: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True)
class Replicas:
    """How they are reached."""

    ask: Callable[[Asked], Parts]
    metrics: Callable[[], Awaitable[Sequence[tuple[str, str]]]]  # each one's name and text
    lost: type[Exception]  # what asking raises where a replica ends
    end: Callable[[], None]


class Front:
    """Everything between the listener and the replicas. Made on any thread, used on the event loop."""

    def __init__(self, replicas: Replicas, settings: Settings, room: int) -> None:
        self.replicas, self.settings = replicas, settings
        self.admission = Admission(room, settings.max_per_key)
        self._clocks: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def inside(self, tenant: str) -> AsyncIterator[None]:
        """While a request runs; TimeoutError where it takes too long, or everything ends."""
        with self.admission.seats(tenant, 1):
            async with asyncio.timeout(self.settings.request_timeout + self.settings.queue_timeout) as clock:
                self._clocks.add(clock)
                try:
                    yield
                finally:
                    self._clocks.discard(clock)

    async def begin(self, asked: Asked) -> Parts:
        """The answer of a replica that took the request in."""
        patience = self.settings.queue_timeout if asked.method == "POST" else self.settings.stall_timeout
        for _ in range(_TRIES):
            parts = self.replicas.ask(asked)
            try:
                async with asyncio.timeout(patience):
                    await anext(parts)
            except self.replicas.lost:
                _LOG.warning("a replica ended before it began a request; asking another")
            except BaseException as problem:
                parts.cancel()
                if isinstance(problem, TimeoutError):
                    raise unavailable("no replica took the request in time; ask again later.", _SOON) from None
                raise
            else:
                return parts
        raise unavailable("replicas end before they begin the request; ask again later.", _SOON)

    async def drain(self) -> None:
        """Take nobody in any more; let those inside finish, for some time."""
        self.admission.close(max(1, ceil(self.settings.drain_timeout)))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout):
                await self.admission.empty.wait()
        for clock in self._clocks:
            clock.reschedule(asyncio.get_running_loop().time())

    async def stop(self) -> None:
        """End the replicas."""
        await asyncio.to_thread(self.replicas.end)


class Forwarded(Response):
    """A replica's answer, as it comes."""

    def __init__(self, front: Front, asked: Asked, tenant: str) -> None:
        self.front, self.asked, self.tenant = front, asked, tenant
        self.background, self.begun, self.streams = None, False, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._say(scope, receive, send))
        except Unread:
            _LOG.info("%s gave up a reader that reads nothing", scope["state"]["id"])

    async def _say(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self.front.inside(self.tenant):
                parts = await self.front.begin(self.asked)
                try:
                    await self._pass(parts, send)
                finally:
                    parts.cancel()
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
        except TimeoutError:
            await self._fail(broken("the request took too long, or the server is ending."), scope, receive, send)
        except self.front.replicas.lost:
            _LOG.warning("a replica ended under a request")
            await self._fail(unavailable(LOST, _SOON), scope, receive, send)

    async def _pass(self, parts: Parts, send: Send) -> None:
        """Every message; the first waits for the second, so that a whole answer comes whole or not at all."""
        held: Message | None = None
        while True:
            try:
                messages = await anext(parts)
            except StopAsyncIteration:
                return
            for message in messages:
                if message["type"] == "http.response.start":
                    held = message
                    continue
                if held is not None:
                    self.streams = any(value.startswith(b"text/event-stream") for _, value in held["headers"])
                    self.begun = True
                    await self._send(send, held)
                    held = None
                await self._send(send, message)

    async def _send(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self.front.settings.write_timeout):
                await send(message)
        except TimeoutError:
            raise Unread from None

    async def _fail(self, problem: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.begun:
            await problem.response()(scope, receive, send)
        elif self.streams:
            await self._send(send, {"type": "http.response.body", "body": encode(problem.body) + DONE})
        else:
            raise problem  # an answer that has begun can only be cut off


def create_front(replicas: Replicas, settings: Settings, room: int) -> FastAPI:
    """The app in front of replicas that have room for so many requests."""
    front = Front(replicas, settings, room)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield

    app = gated(settings, lifespan, Accounts(settings.requests_per_minute), described=None)
    app.state.service = front
    app.add_route("/metrics", _metrics, methods=["GET"])
    app.add_route("/ready", _ready, methods=["GET"])
    app.add_route("/{path:path}", _forward, methods=["GET", "POST"])
    return app


async def _forward(request: Request) -> Response:
    front: Front = request.app.state.service
    body = await body_of(request, front.settings.read_timeout) if request.method == "POST" else b""
    tenant, headers = getattr(request.state, "tenant", ""), [*request.scope["headers"]]
    keys = await asyncio.to_thread(_keys, tenant, request.headers.get("x-session-id", ""), body) if body else ()
    headers.append((b"x-request-id", request.state.id.encode()))
    where = request.method, request.scope["path"], request.scope["query_string"]
    return Forwarded(front, Asked(*where, tuple(headers), body, keys), tenant)


def _keys(tenant: str, session: str, body: bytes) -> tuple[str, ...]:
    """What the router goes by; nothing where the body is not what it should be, which the replica will say."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    return keys_of(tenant, session, found) if isinstance(found, dict) else ()


async def _ready(request: Request) -> Response:
    """Whether new requests are taken in; a replica that is there says so."""
    front: Front = request.app.state.service
    if front.admission.leaving is not None:
        raise unavailable("the server is shutting down; ask another one, or later.", front.admission.leaving)
    return await _forward(request)


async def _metrics(request: Request) -> Response:
    """Those of every replica, told apart by a label."""
    front: Front = request.app.state.service
    registry = CollectorRegistry()
    registry.register(Together(await front.replicas.metrics()))
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class Together(Collector):
    """The metrics of several replicas as one text."""

    def __init__(self, texts: Sequence[tuple[str, str]]) -> None:
        self.texts = texts

    def collect(self) -> list[Metric]:
        """Every family once."""
        families: dict[str, Metric] = {}
        for name, text in self.texts:
            for found in text_string_to_metric_families(text):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    labels = {**sample.labels, "replica": name}
                    family.add_sample(sample.name, labels, sample.value)
        return list(families.values())
