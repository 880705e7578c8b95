"""One answer, from the first token to the last: whole, or in parts as they come.

The status is decided by the first news, so that a request that cannot run gets an error and not a broken stream.
Does not: go on for a client that is gone, streaming or not.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from math import inf
from secrets import token_hex
from statistics import fmean
from time import time
from typing import Any

from fastapi.responses import JSONResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.engine.stats import RequestStats
from forerun.guide import COMPLEX, LOST
from forerun.sampling import STUCK
from forerun.server.connection import Pour, pour_of
from forerun.server.loop import News
from forerun.server.refusal import Refusal, broken, invalid, unavailable
from forerun.server.service import Order, Service
from forerun.server.shapes import Json, Report, StepReport, drafting, scored, usage
from forerun.server.sse import DONE, encode, stream, unless_gone
from forerun.server.tools import Call, Reader
from forerun.types import Emission, Event, Logprob

_LOG = logging.getLogger("forerun.server")
_MARK = "\0"  # where the text stands in a part
New = tuple[str, list[tuple[int, Call]]]  # text and calls, these with their places


@dataclass
class Told:
    """What one ask has become so far."""

    report: Report | None
    reader: Reader | None  # of calls, where there may be some
    text: list[str] = field(default_factory=list)  # not told yet
    calls: list[Call] = field(default_factory=list)
    told: int = 0  # of the calls
    emissions: list[Emission] = field(default_factory=list)
    scores: Sequence[Logprob | None] = ()  # of the prompt
    first: float | None = None  # when its first token came
    last: Event | None = None

    def hear(self, event: Event) -> None:
        if event.emissions and self.first is None:
            self.first, self.scores = event.time, event.prompt_logprobs
        self.emissions += event.emissions
        if event.finish_reason is not None:
            self.last = event
        text, calls = event.text, list[Call]()
        if self.reader is not None:
            text, calls = self.reader.hear(text, over=self.last is not None)
        self.text.append(text)
        self.calls += calls

    def take(self) -> New:
        """Text and calls that were not told yet."""
        text, calls = "".join(self.text), list(enumerate(self.calls))[self.told :]
        self.text.clear()
        self.told = len(self.calls)
        return text, calls

    @property
    def reason(self) -> str | None:
        """Why it ended; None: it has not."""
        reason = self.last.finish_reason if self.last is not None else None
        return "tool_calls" if reason == "stop" and self.calls else reason

    @property
    def likelihood(self) -> float:
        """The mean of its tokens' logprobs, which were asked for."""
        found = [emission.logprob.value for emission in self.emissions if emission.logprob is not None]
        return fmean(found) if found else -inf

    def logprobs(self, emissions: Sequence[Emission]) -> Json | None:
        """Of some of its tokens; None where nobody asked."""
        return self.report.of(emissions) if self.report is not None else None


class Reply(Response):
    """Answers one order; an error before the first news is raised as a Refusal."""

    def __init__(self, service: Service, order: Order, tenant: str) -> None:
        self.service, self.order, self.tenant = service, order, tenant
        self.background = None
        self.told = [Told(self._report(), self._reader()) for _ in order.asks]
        self.frames: dict[int, tuple[bytes, bytes]] = {}  # of choices: what stands around text that comes alone
        self.steps = [StepReport(service.words) for _ in order.asks] if order.steps else None
        self.head: Json = {"id": order.shape.prefix + token_hex(12), "created": int(time()), "model": service.name}

    def _report(self) -> Report | None:
        return self.order.shape.report(self.service.words) if self.order.logprobs else None

    def _reader(self) -> Reader | None:
        return self.order.calling.reader() if self.order.calling is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        home, seconds = asyncio.get_running_loop(), self.service.settings.request_timeout
        async with self.service.open(self.order, self.tenant) as self.ticket:
            limit = home.call_later(seconds, self.ticket.expire)  # one per part would cost as much as it
            try:
                await unless_gone(receive, self._say(scope, receive, send))
            finally:
                limit.cancel()
                if "about" in scope["state"]:
                    scope["state"]["about"] |= self._about()

    async def _say(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await self._first()
        if not self.order.stream:
            await self._hear_all()
            await JSONResponse(self._whole())(scope, receive, send)
            return
        try:
            await stream(send, self._parts(first, pour_of(scope)), self.service.settings.write_timeout)
        except TimeoutError:
            _LOG.info("%s gave up a reader that reads nothing", scope["state"]["id"])

    # news

    async def _read(self, at_once: Callable[[News], bool] | None = None) -> News:
        try:
            news = await self.ticket.read(at_once)
        except TimeoutError:
            seconds = self.service.settings.request_timeout
            message = f"the request took more than {seconds:g} s; ask for fewer tokens."
            raise Refusal(408, message, kind="timeout_error", code="timeout") from None
        self._hear(news)
        return news

    def _hear(self, news: News) -> None:
        for index, event in news:
            self.told[index].hear(event)

    async def _first(self) -> News:
        """The first news; Refusal where a request waits too long, or ends before it has a text."""
        reading = asyncio.create_task(self._read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=self.service.settings.queue_timeout)
            if not done and await self.service.waits(self.ticket):
                raise unavailable("the request waited too long for others; ask again later.", 1)
            news = await reading
        finally:
            reading.cancel()
        _check(news)
        return news

    async def _hear_all(self) -> None:
        while any(told.last is None for told in self.told):
            _check(await self._read(self._noted))

    def _noted(self, news: News) -> bool:
        """Hear news that ends nothing, which nobody is told yet."""
        if any(event.finish_reason is not None for _, event in news):
            return False
        self._hear(news)
        return True

    def _about(self) -> dict[str, str | int | float | Sequence[str]]:
        """Numbers and names of what was asked and became of it, for a trace; no text."""
        name, spent = self.service.name, RequestStats()
        for told in self.told:
            if told.last is not None:
                spent.add(told.last.stats)
        found = usage(self._prompts(), sum(len(told.emissions) for told in self.told), spent.cached)
        firsts = [told.first for told in self.told if told.first is not None]
        lasts = [told.last.time for told in self.told if told.last is not None]
        times = {
            "gen_ai.latency.time_in_queue": spent.queued / len(self.told),
            **({"gen_ai.latency.time_to_first_token": min(firsts) - self.ticket.arrived} if firsts else {}),
            **({"gen_ai.latency.e2e": max(lasts) - self.ticket.arrived} if lasts else {}),
            **({"gen_ai.latency.time_in_model_decode": max(lasts) - min(firsts)} if firsts and lasts else {}),
        }
        return {
            "gen_ai.operation.name": self.order.shape.operation,
            "gen_ai.provider.name": "forerun",
            "gen_ai.request.model": name,
            "gen_ai.response.model": name,
            "gen_ai.response.id": self.head["id"],
            "gen_ai.response.finish_reasons": [told.reason or "left" for told in self.told],
            "gen_ai.usage.input_tokens": found["prompt_tokens"],
            "gen_ai.usage.output_tokens": found["completion_tokens"],
            "gen_ai.request.choice.count": len(self.told),
            "forerun.drafts": spent.reached[1],
            "forerun.drafted_tokens": spent.drafted,
            "forerun.accepted_tokens": spent.accepted,
            "forerun.accepted_per_draft": spent.accepted / max(1, spent.reached[1]),
            **times,
        }

    # a whole answer

    def _whole(self) -> Json:
        texts = [echo + "".join(told.text) for echo, told in zip(self.order.echoes, self.told, strict=True)]
        asks, shape, told = self.order.asks, self.order.shape, self.told
        best = self._best()
        choices = [
            self._choice(i, shape.said(texts[i], told[i].calls), [*self._echoed(i), *told[i].emissions], told[i].last)
            | {"index": place}
            for place, i in enumerate(best)
        ]
        whole = {**self.head, "object": shape.whole, "choices": choices, "usage": self._usage()}
        if not self.order.scored:
            return whole
        return shape.scored(whole, [scored(asks[i].prompt, told[i].scores, self.service.words) for i in best])

    def _echoed(self, index: int) -> list[Emission]:
        """The prompt's tokens, where they are told with those of the text."""
        report, prompt = self.told[index].report, self.order.asks[index].prompt
        if not self.order.echoes[index] or report is None:
            return []
        report.begin(prompt, self.order.echoes[index])
        return [Emission(t, "prompt", found) for t, found in zip(prompt, self.told[index].scores, strict=True)]

    def _best(self) -> Sequence[int]:
        """The asks that are told: of every prompt all, or its likeliest, the best first."""
        drawn, n, asked = self.order.drawn, self.order.n, range(len(self.told))
        if drawn == n:
            return asked
        groups = [asked[first : first + drawn] for first in asked[::drawn]]
        return [i for group in groups for i in sorted(group, key=lambda i: -self.told[i].likelihood)[:n]]

    def _choice(self, index: int, said: Json, emissions: Sequence[Emission], last: Event | None) -> Json:
        """One choice, or a part of one; `last` is its end, where it came."""
        logprobs = self.told[index].logprobs(emissions)
        choice = {
            "index": index,
            **said,
            "logprobs": logprobs,
            "finish_reason": self.told[index].reason if last else None,
        }
        if last is None:
            return choice
        return choice | {"speculative_decoding_stats": drafting(last.stats), "seed": self.ticket.seeds[index]}

    def _prompts(self) -> int:
        return sum(len(ask.prompt) for ask in self.order.asks[:: self.order.drawn])

    def _usage(self) -> Json:
        written = sum(len(told.emissions) for told in self.told)
        cached = sum(told.last.stats.cached for told in self.told if told.last is not None)
        return usage(self._prompts(), written, cached)

    # parts

    async def _parts(self, news: News, pour: Pour) -> AsyncIterator[bytes]:
        """What the reader gets but for what is poured, until [DONE]; an error ends it too."""
        at_once = partial(self._at_once, pour)
        lines = b"".join(self._opening(i) for i in range(len(self.told))) + self._lines(news)
        try:
            while any(told.last is None for told in self.told):
                yield lines
                lines = self._lines(await self._read(at_once))
        except Refusal as refusal:
            yield encode(refusal.body) + DONE
            return
        if self.order.usage:
            lines += encode({**self.head, "object": self.order.shape.part, "choices": [], "usage": self._usage()})
        yield lines + DONE  # together, for each sending wakes the reader

    def _at_once(self, pour: Pour, news: News) -> bool:
        """Tell news that ends nothing to a reader who takes it; whatever else there is wakes who waits for it."""

        def part() -> bytes:
            self._hear(news)
            return self._lines(news)

        return all(event.finish_reason is None for _, event in news) and pour(part)

    def _opening(self, index: int) -> bytes:
        """What a choice begins with, before its first text."""
        said = self.order.shape.opening(self.order.echoes[index])
        if said is None:
            return b""
        return self._part({"index": index, **said, "logprobs": None, "finish_reason": None})

    def _lines(self, news: News) -> bytes:
        """One part per choice that there is news of, or per step of it where steps are asked for."""
        lines: list[bytes] = []
        bare = self.steps is None and not self.order.counted
        for index in dict.fromkeys(index for index, _ in news):
            events = [event for i, event in news if i == index]
            new, last = self.told[index].take(), self.told[index].last
            if last is not None and last.error is not None:
                lines.append(encode(_failed(last.error).body))
            if self.steps is not None:
                lines += [self._said(index, [event], ("", []), None) for event in events[:-1]]
                events = events[-1:]
            if last is not None or new[1] or self.told[index].report is not None or not bare:
                lines.append(self._said(index, events, new, last))
            elif new[0]:
                lines.append(self._grown(index, new[0]))
        return b"".join(lines)

    def _grown(self, index: int, text: str) -> bytes:
        """What nearly all parts are: text of a choice, and nothing else that is new."""
        if index not in self.frames:
            before, _, after = self._said(index, (), (_MARK, []), None).rpartition(quoted(_MARK).encode())
            self.frames[index] = before, after
        before, after = self.frames[index]
        return before + quoted(text).encode() + after

    def _said(self, index: int, events: Sequence[Event], new: New, last: Event | None) -> bytes:
        """What came of one choice; its step is that of the last event."""
        emissions = [emission for event in events for emission in event.emissions]
        choice = self._choice(index, self.order.shape.grown(*new), emissions, last)
        if self.steps is not None:
            choice["step"] = self.steps[index].of(events[-1])
        return self._part(choice)

    def _part(self, choice: Json) -> bytes:
        asked: dict[str, Any] = {"usage": self._usage() if self.order.counted else None} if self.order.usage else {}
        return encode({**self.head, "object": self.order.shape.part, "choices": [choice], **asked})


def _check(news: News) -> None:
    """Refusal for news that a text cannot be had."""
    for _, event in news:
        if event.error is not None:
            raise _failed(event.error)


def _failed(error: str) -> Refusal:
    """The request is to blame where what it asked for leaves no token to draw; else the server is."""
    return invalid(error) if error.startswith((STUCK, LOST, COMPLEX)) else broken(error)
