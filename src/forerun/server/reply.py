"""One answer, from the first token to the last: whole, or in parts as they come.

The status is decided by the first news, so that a request that cannot run gets an error and not a broken stream.
Does not: go on for a client that is gone, streaming or not.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from time import time
from typing import Any

from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.sampling import STUCK
from forerun.server.loop import Ticket
from forerun.server.refusal import SERVER, Refusal, broken, invalid, unavailable
from forerun.server.service import Order, Service
from forerun.server.shapes import Json, Report, StepReport, drafting, usage
from forerun.server.sse import DONE, encode, stream, unless_gone
from forerun.types import Emission, Event

_LOG = logging.getLogger("forerun.server")
News = Sequence[tuple[int, Event]]


@dataclass
class Told:
    """What one ask has become so far."""

    report: Report | None
    text: list[str] = field(default_factory=list)
    emissions: list[Emission] = field(default_factory=list)
    last: Event | None = None

    def hear(self, event: Event) -> None:
        self.text.append(event.text)
        self.emissions += event.emissions
        if event.finish_reason is not None:
            self.last = event

    def logprobs(self, emissions: Sequence[Emission]) -> Json | None:
        """Of some of its tokens; None where nobody asked."""
        return self.report.of(emissions) if self.report is not None else None


class Reply(Response):
    """Answers one order; an error before the first news is raised as a Refusal."""

    def __init__(self, service: Service, order: Order, tenant: str) -> None:
        self.service, self.order, self.tenant = service, order, tenant
        self.background = None
        self.told = [Told(self._report(i)) for i in range(len(order.asks))]
        self.steps = [StepReport(service.words) for _ in order.asks] if order.steps else None
        self.head: Json = {"id": order.shape.prefix + token_hex(12), "created": int(time()), "model": service.name}

    def _report(self, index: int) -> Report | None:
        asked = self.order.asks[index].sampling.logprobs is not None
        return self.order.shape.report(self.service.words) if asked else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.service.open(self.order, self.tenant) as ticket:
            await unless_gone(receive, self._say(ticket, scope, receive, send))

    async def _say(self, ticket: Ticket, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = asyncio.get_running_loop().time() + self.service.settings.request_timeout
        first = await self._first(ticket, deadline)
        if self.order.stream:
            try:
                await stream(send, self._parts(ticket, first, deadline), self.service.settings.write_timeout)
            except TimeoutError:
                _LOG.info("%s gave up a reader that reads nothing", scope["state"]["id"])
            return
        await self._hear_all(ticket, first, deadline)
        await JSONResponse(self._whole(ticket))(scope, receive, send)

    # news

    async def _read(self, ticket: Ticket, deadline: float) -> News:
        try:
            async with asyncio.timeout_at(deadline):
                news = await ticket.read()
        except TimeoutError:
            seconds = self.service.settings.request_timeout
            message = f"the request took more than {seconds:g} s; ask for fewer tokens."
            raise Refusal(408, message, kind="timeout_error", code="timeout") from None
        for index, event in news:
            self.told[index].hear(event)
        return news

    async def _first(self, ticket: Ticket, deadline: float) -> News:
        """The first news; Refusal where a request waits too long, or ends before it has a text."""
        until = asyncio.get_running_loop().time() + self.service.settings.queue_timeout
        reading = asyncio.create_task(self._read(ticket, deadline))
        try:
            done, _ = await asyncio.wait({reading}, timeout=max(0, until - asyncio.get_running_loop().time()))
            if not done and await self.service.waits(ticket):
                raise unavailable("the request waited too long for others; ask again later.", 1)
            news = await reading
        finally:
            reading.cancel()
        for _, event in news:
            _check(event)
        return news

    async def _hear_all(self, ticket: Ticket, news: News, deadline: float) -> None:
        while any(told.last is None for told in self.told):
            for _, event in news:
                _check(event)
            news = await self._read(ticket, deadline)
        for told in self.told:
            _check(told.last)

    # a whole answer

    def _whole(self, ticket: Ticket) -> Json:
        choices = [
            self._choice(i, self.order.shape.said(self.order.echoes[i] + "".join(told.text)), told.emissions, told.last)
            | {"seed": ticket.seeds[i]}
            for i, told in enumerate(self.told)
        ]
        return {**self.head, "object": self.order.shape.whole, "choices": choices, "usage": self._usage()}

    def _choice(self, index: int, said: Json, emissions: Sequence[Emission], last: Event | None) -> Json:
        """One choice, or a part of one; `last` is its end, where it came."""
        logprobs = self.told[index].logprobs(emissions)
        ended = {} if last is None else {"speculative_decoding_stats": drafting(last.stats)}
        reason = None if last is None else last.finish_reason
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason, **ended}

    def _usage(self) -> Json:
        prompts = sum(len(ask.prompt) for ask in self.order.asks[:: self.order.n])
        written = sum(len(told.emissions) for told in self.told)
        return usage(prompts, written, sum(told.last.stats.cached for told in self.told if told.last is not None))

    # parts

    async def _parts(self, ticket: Ticket, news: News, deadline: float) -> AsyncIterator[bytes]:
        """Everything that the reader gets, until [DONE]; an error ends it too."""
        lines = [self._part(self._opening(i)) for i in range(len(self.told)) if self._opening(i) is not None]
        try:
            yield b"".join(lines) + self._lines(ticket, news)
            while any(told.last is None for told in self.told):
                yield self._lines(ticket, await self._read(ticket, deadline))
        except Refusal as refusal:
            yield encode(refusal.body) + DONE
            return
        if self.order.usage:
            yield encode({**self.head, "object": self.order.shape.part, "choices": [], "usage": self._usage()})
        yield DONE

    def _opening(self, index: int) -> Json | None:
        """What a choice begins with; None where it begins with its first text."""
        echo, opening = self.order.echoes[index], self.order.shape.opening()
        said = self.order.shape.grown(echo) if echo else opening
        return None if said is None else {"index": index, **said, "logprobs": None, "finish_reason": None}

    def _lines(self, ticket: Ticket, news: News) -> bytes:
        lines: list[bytes] = []
        for index, event in news:
            if event.error is not None:
                lines.append(encode({"error": {"message": event.error, "type": SERVER, "param": None, "code": None}}))
            last = event if event.finish_reason is not None else None
            if event.text or last is not None or self.told[index].report is not None or self.steps is not None:
                choice = self._choice(index, self.order.shape.grown(event.text), event.emissions, last)
                if self.steps is not None:
                    choice["step"] = self.steps[index].of(event)
                lines.append(self._part(choice | ({"seed": ticket.seeds[index]} if last is not None else {})))
        return b"".join(lines)

    def _part(self, choice: Json | None) -> bytes:
        asked: dict[str, Any] = {"usage": None} if self.order.usage else {}
        return encode({**self.head, "object": self.order.shape.part, "choices": [choice], **asked})


def _check(event: Event | None) -> None:
    """Refusal for an event that says that its text cannot be had."""
    if event is not None and event.error is not None:
        raise invalid(event.error) if event.error == STUCK else broken(event.error)
