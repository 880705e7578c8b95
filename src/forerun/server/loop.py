"""The engine's own thread: orders go in through a queue, and events come out on the event loop.

An order is a function of the engine, run between two steps. Where the engine breaks, everybody who waits is told.
Does not: know HTTP; bound how much a caller may ask for (`limits.py`). What waits for a reader who is slow is at most
what his request may write.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic, perf_counter
from typing import Any, TypeVar

from forerun.engine.engine import Engine
from forerun.engine.stats import RequestStats
from forerun.errors import log_bug
from forerun.server.refusal import unavailable
from forerun.types import Event, Sampling

_LOG = logging.getLogger("forerun.server")
_IDLE = 0.5  # seconds between signs of life while there is nothing to do
_PACE = 0.004  # seconds between deliveries: waking the event loop for every step of a small model costs as much as it
_LAST = 10  # seconds that the last step gets
_RESTART = 30  # seconds after which somebody may have started the server anew
T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """What an engine is asked to write, once."""

    prompt: Sequence[int]
    sampling: Sampling
    scope: str = ""
    prediction: Sequence[int] = ()
    priority: int = 0  # the lower the sooner, under schedulers that look at it


@dataclass(eq=False)
class Ticket:
    """The asks of one caller while they run, and the news of them as (ask, event)."""

    asks: Sequence[Ask]
    arrived: float = field(default_factory=perf_counter)
    seeds: list[int] = field(default_factory=list)
    news: asyncio.Queue[tuple[int, Event]] = field(default_factory=asyncio.Queue)
    numbers: list[int] = field(default_factory=list)  # the engine's
    gone: bool = False  # nobody reads the news any more

    async def read(self) -> list[tuple[int, Event]]:
        """All that is new; waits for one event."""
        found = [await self.news.get()]
        while not self.news.empty():
            found.append(self.news.get_nowait())
        return found


Observer = Callable[[Ticket, int, Event], None]  # called in the engine's thread
Order = tuple[Callable[[Engine], Any], "asyncio.Future[Any]"]


class EngineLoop:
    """Steps an engine for as long as there is work."""

    def __init__(self, engine: Engine, observe: Observer) -> None:
        self._engine, self._observe = engine, observe
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._tickets: dict[int, tuple[Ticket, int]] = {}  # number -> whose, and which of its asks
        self._thread = Thread(target=self._run, name="forerun-engine", daemon=True)
        self._lock, self._stopping = Lock(), False  # the lock: no order comes after the last was answered
        self._news: deque[tuple[Ticket, int, Event]] = deque()
        self._delivering = False  # whether the event loop is going to look at the news
        self._beat = monotonic()
        self.broken: str | None = None

    # on the event loop

    def start(self) -> None:
        """From the event loop that will hear the news."""
        self._home = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its step, if that ends; whoever still waits is told."""
        self._stopping = True
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _LAST)

    def silence(self) -> float:
        """Seconds since the engine last finished a step, or said that it has nothing to do."""
        return monotonic() - self._beat

    async def call(self, order: Callable[[Engine], T]) -> T:
        """What the order returns; it runs in the engine's thread, before the next step."""
        found: asyncio.Future[T] = self._home.create_future()
        with self._lock:
            if self.broken is not None:
                raise unavailable(self.broken, _RESTART)
            self._orders.put((order, found))
        return await found

    async def submit(self, asks: Sequence[Ask]) -> Ticket:
        """All of them, or none and a RequestError."""
        ticket = Ticket(asks)
        try:
            await self.call(partial(self._seat, ticket))
        except asyncio.CancelledError:
            self.leave(ticket)
            raise
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Abort what still runs of it; nobody hears of that."""
        ticket.gone = True
        with self._lock:
            if self.broken is None:
                self._orders.put((partial(self._abort, ticket), self._home.create_future()))

    async def abort_all(self) -> None:
        """End everything now; everybody hears of it."""
        await self.call(_abort_all)

    def _deliver(self) -> None:
        """Hand the news out, and look again in a moment; what comes at once is so handed out together."""
        with self._lock:
            self._delivering = bool(self._news)
        while self._news:
            ticket, index, event = self._news.popleft()
            ticket.news.put_nowait((index, event))
        if self._delivering:
            self._home.call_later(_PACE, self._deliver)

    # in the engine's thread

    def _seat(self, ticket: Ticket, engine: Engine) -> None:
        try:
            for index, ask in enumerate(ticket.asks):
                number = engine.add(
                    ask.prompt, ask.sampling, ask.scope, prediction=ask.prediction, priority=ask.priority
                )
                self._tickets[number] = ticket, index
                ticket.numbers.append(number)
                ticket.seeds.append(engine.requests[number].sampling.seed or 0)
        except Exception:
            ticket.gone = True
            self._abort(ticket, engine)
            raise

    def _abort(self, ticket: Ticket, engine: Engine) -> None:
        for number in ticket.numbers:
            engine.abort(number)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                if self._engine.busy:
                    self._tell(self._engine.step())
                self._beat = monotonic()
            self._end("the server is stopping; ask again later.")
        except Exception as problem:  # noqa: BLE001 - everybody who waits is told
            log_bug(_LOG, "the engine broke", problem)
            self._end(f"the engine broke ({type(problem).__name__}); start the server anew.")

    def _obey(self) -> None:
        """Run every order that is there; wait a little for one where there is nothing else to do."""
        try:
            order = self._orders.get(timeout=_IDLE) if not self._engine.busy else self._orders.get_nowait()
            while True:
                self._do(*order)
                order = self._orders.get_nowait()
        except Empty:
            return

    def _do(self, order: Callable[[Engine], Any], found: "asyncio.Future[Any]") -> None:
        try:
            result = order(self._engine)
        except Exception as problem:  # noqa: BLE001 - it goes to whoever gave the order
            self._home.call_soon_threadsafe(_fail, found, problem)
        else:
            self._home.call_soon_threadsafe(_settle, found, result)

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            ticket, index = self._tickets[event.request]
            if event.finish_reason is not None:
                del self._tickets[event.request]
            try:
                self._observe(ticket, index, event)
            except Exception as problem:  # noqa: BLE001 - whoever waits gets his text, counted or not
                log_bug(_LOG, "counting a request failed", problem)
            if not ticket.gone:
                self._news.append((ticket, index, event))
        with self._lock:
            asleep = self._news and not self._delivering
            self._delivering = bool(self._delivering or asleep)
        if asleep:
            self._home.call_soon_threadsafe(self._deliver)

    def _end(self, sentence: str) -> None:
        """Nothing is stepped any more: answer every order, and end every ask with an error."""
        with self._lock:
            self.broken = sentence
        while not self._orders.empty():
            _, found = self._orders.get_nowait()
            self._home.call_soon_threadsafe(_fail, found, unavailable(sentence, _RESTART))
        self._tell([Event(n, (), "", "error", sentence, perf_counter(), RequestStats()) for n in self._tickets])


def _abort_all(engine: Engine) -> None:
    for number in list(engine.requests):
        engine.abort(number)


def _settle(found: "asyncio.Future[Any]", result: Any) -> None:  # noqa: ANN401 - whatever the order returned
    if not found.done():
        found.set_result(result)


def _fail(found: "asyncio.Future[Any]", problem: Exception) -> None:
    if not found.done():
        found.set_exception(problem)
