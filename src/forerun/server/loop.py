"""The engine's own thread: orders go in through a queue, and events come out on the event loop.

An order is a function of the engine, run between two steps. What a step wrote is told while the next pass runs, which
needs the interpreter no more than the teller needs the pass; where the pass has every core, it waits until much was
told, for all its threads would wait for the one whose core the teller took. Where the engine breaks, everybody who
waits is told.
Does not: know HTTP; bound how much a caller may ask for (`limits.py`). What waits for a reader who is slow is at most
what his request may write.
"""

import asyncio
import ctypes
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from select import select
from threading import Lock, Thread
from time import monotonic, perf_counter, thread_time
from typing import Any, TypeVar

from forerun.engine.engine import Engine
from forerun.engine.stats import RequestStats
from forerun.errors import log_bug
from forerun.kernels.native import load
from forerun.server.refusal import unavailable
from forerun.types import Event, Sampling

_LOG = logging.getLogger("forerun.server")
_LIBC = ctypes.PyDLL(None)  # its functions keep the interpreter
_IDLE = 0.5  # seconds between signs of life while there is nothing to do
_PACE = 0.004  # seconds between deliveries: waking the event loop for every step of a small model costs as much as it
_LEISURE = 0.05  # the same while nobody waits for parts
_LATEST = 2 * _PACE  # seconds after one, at least, in which first texts and ends are looked for, behind a long pass
_SHARE, _SLOWEST = 0.05, 0.02  # of the time that deliveries may take, as long as there are this many seconds between
_HOP = 0.0002  # seconds from the wish to deliver to its beginning
_HELD = 0.004  # seconds at most that a pass waits for a delivery
_LAST = 10  # seconds that the last step gets
_RESTART = 30  # seconds after which somebody may have started the server anew
T = TypeVar("T")
News = list[tuple[int, Event]]  # which ask, and what of it


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
    eager: bool = True  # whether the caller wants parts as they come, and not only the end
    arrived: float = field(default_factory=perf_counter)
    seeds: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # the engine's
    gone: bool = False  # nobody reads the news any more
    late: bool = False  # nobody waits for more of it
    _news: News = field(default_factory=list)
    _fresh: asyncio.Event = field(default_factory=asyncio.Event)
    _at_once: Callable[[News], bool] | None = None  # of a reader who waits
    _problem: Exception | None = None  # of that

    def hear(self, news: News) -> None:
        """News of its asks."""
        try:
            if self._at_once is not None and not self._fresh.is_set() and self._at_once(news):
                return
        except Exception as problem:  # noqa: BLE001 - it is this reader's, and others hear of theirs behind him
            self._problem = problem
        self._news += news
        self._fresh.set()

    def expire(self) -> None:
        """The time is over: what is new by now can still be read."""
        self.late = True
        self._fresh.set()

    async def read(self, at_once: Callable[[News], bool] | None = None) -> News:
        """All that is new; waits for one event, or raises TimeoutError.

        `at_once` hears news while this waits, and says whether that was all there was to do about it: to wake a task
        for each of many streams costs more than to send a part.
        """
        self._at_once = at_once
        try:
            await self._fresh.wait()
        finally:
            self._at_once = None
        if self._problem is not None:
            raise self._problem
        if not self._news:
            raise TimeoutError
        found, self._news = self._news, []
        if not self.late:
            self._fresh.clear()
        return found


Observer = Callable[[Ticket, int, Event], None]  # called on the event loop
Order = tuple[Callable[[Engine], Any], "asyncio.Future[Any]"]


class Bell:
    """Wakes an event loop from another thread, which keeps the interpreter meanwhile.

    Who lets go of it to write, as Python's own functions do, gets it back only milliseconds later from an event loop
    that is then awake. Who waits for an answer wants it back no sooner, and lets go of it first, for an event loop that
    wakes and does not find it free has to be woken twice.
    """

    def __init__(self, home: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
        self._home, self._answer = home, answer
        self._ends = self._ear, self._button, self._hand, self._voice = *os.pipe(), *os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)
        self._awaited = False
        home.add_reader(self._ear, self._heard)

    def ring(self) -> None:
        """From any thread, until `close`."""
        _LIBC.write(self._button, b"!", 1)

    def ring_until_answered(self, seconds: float) -> None:
        """The same, and wait for so long at most until the answer was given. From one thread at a time."""
        self._awaited, module = True, load()
        if module is not None:
            module.ring(self._button, self._hand, seconds)
        else:
            with suppress(BlockingIOError):
                os.read(self._hand, 64)
            self.ring()
            select([self._hand], (), (), seconds)
        self._awaited = False

    def close(self) -> None:
        """On the event loop, once nobody rings any more."""
        self._home.remove_reader(self._ear)
        for end in self._ends:
            os.close(end)

    def _heard(self) -> None:
        os.read(self._ear, 64)
        self._answer()
        if self._awaited:
            _LIBC.write(self._voice, b"!", 1)


class EngineLoop:
    """Steps an engine for as long as there is work."""

    def __init__(self, engine: Engine, observe: Observer, *, beside: bool = True) -> None:
        """`beside`: whether a core is left for the event loop while a pass runs."""
        self._engine, self._observe, self._beside = engine, observe, beside
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._tickets: dict[int, tuple[Ticket, int]] = {}  # number -> whose, and which of its asks
        self._thread = Thread(target=self._run, name="forerun-engine", daemon=True)
        self._lock, self._stopping = Lock(), False  # the lock: no order comes after the last was answered
        self._news: deque[tuple[Ticket, int, Event]] = deque()
        self._answers: deque[Callable[[], None]] = deque()  # to orders
        self._pace = _LEISURE  # seconds between deliveries, by who waits for what is new
        self._steady = _PACE  # the same while texts grow
        self._fresh = set[int]()  # numbers of which nothing was heard yet
        self._woken, self._woke = False, 0.0  # whether the event loop is about to look at the news; when it was told to
        self._took = 0.0  # seconds of work that the last delivery was
        self._look: asyncio.TimerHandle | None = None
        self._passed, self._stride = perf_counter(), 0.0  # when the last pass began, and how long after the one before
        self._beat = monotonic()
        self.broken: str | None = None
        engine.before_pass = self._pass

    # on the event loop

    def start(self) -> None:
        """From the event loop that will hear the news."""
        self._home = asyncio.get_running_loop()
        self._bell = Bell(self._home, self._deliver)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its step, if that ends; whoever still waits is told."""
        self._stopping = True
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _LAST)
            if not self._thread.is_alive():
                self._deliver()
                self._bell.close()

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

    async def submit(self, asks: Sequence[Ask], *, eager: bool = True) -> Ticket:
        """All of them, or none and a RequestError; `eager`: as a ticket has it."""
        ticket = Ticket(asks, eager)
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
        """Hand out what is there: answers to orders, then news."""
        while self._answers:
            self._answers.popleft()()
        self._hand_out()

    def _hand_out(self) -> None:
        """All news; look again in a while where there was some."""
        # Before the news goes: what is told meanwhile sets its own pace.
        self._woken, self._pace, began = False, _LEISURE, thread_time()
        fresh: dict[Ticket, News] = {}
        while self._news:
            ticket, index, event = self._news.popleft()
            fresh.setdefault(ticket, []).append((index, event))
        if fresh:  # else the next look stays: what the bell was rung for may be handed out before it is heard
            if self._look is not None:
                self._look.cancel()
            most = 2 * (self._steady if any(ticket.eager for ticket in fresh) else _LEISURE)
            self._look = self._home.call_later(self._patience(), self._again, self._home.time() + most)
        for ticket, news in fresh.items():
            if not ticket.gone:
                ticket.hear(news)
        for ticket, news in fresh.items():  # whoever waits gets his text first, counted or not
            for index, event in news:
                try:
                    self._observe(ticket, index, event)
                except Exception as problem:  # noqa: BLE001
                    log_bug(_LOG, "counting a request failed", problem)
        if fresh:
            self._took = thread_time() - began
            self._steady = min(max(self._took / _SHARE, _PACE), _SLOWEST)

    def _again(self, until: float) -> None:
        """Hand out what waits behind a long pass: first texts and ends now, the rest when its time has come."""
        if self._pace > _PACE and self._home.time() < until:
            self._look = self._home.call_later(self._patience(), self._again, until)
        else:
            self._deliver()

    def _patience(self) -> float:
        """Seconds until it looks again: not before the next pass, for whoever looks takes a core from this one."""
        return min(max(_LATEST, 1.5 * self._stride), 2 * _SLOWEST)

    # in the engine's thread

    def _seat(self, ticket: Ticket, engine: Engine) -> None:
        try:
            for index, ask in enumerate(ticket.asks):
                number = engine.add(
                    ask.prompt, ask.sampling, ask.scope, prediction=ask.prediction, priority=ask.priority
                )
                self._tickets[number] = ticket, index
                self._fresh.add(number)
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
                if not self._engine.busy:
                    self._wake()
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
            self._answer(partial(_fail, found, problem))
        else:
            self._answer(partial(_settle, found, result))

    def _answer(self, answer: Callable[[], None]) -> None:
        """To an order. Its thread keeps the interpreter, for the step that was asked for comes first."""
        self._answers.append(answer)
        self._bell.ring()

    def _tell(self, events: Sequence[Event]) -> None:
        """Leave news for the event loop."""
        for event in events:
            ticket, index = self._tickets[event.request]
            self._news.append((ticket, index, event))
            if event.request in self._fresh or event.finish_reason is not None:
                self._fresh.discard(event.request)
                self._pace = _PACE
            elif ticket.eager:
                self._pace = min(self._pace, self._steady)
            if event.finish_reason is not None:
                del self._tickets[event.request]

    def _pass(self) -> None:
        """Before a pass, during which others may have the interpreter."""
        now = perf_counter()
        self._passed, self._stride = now, now - self._passed
        if now - self._woke >= self._pace:
            self._wake(held=not self._beside and self._took > _HOP)

    def _wake(self, *, held: bool = False) -> None:
        """Have the event loop hand out the news, if there is any; `held`: and wait until it has, or some time."""
        if self._news and not self._woken:
            self._woken, self._woke = True, perf_counter()
            if not held:
                self._bell.ring()
        if held and self._woken:
            self._bell.ring_until_answered(_HELD)

    def _end(self, sentence: str) -> None:
        """Nothing is stepped any more: answer every order, and end every ask with an error."""
        with self._lock:
            self.broken = sentence
        while not self._orders.empty():
            _, found = self._orders.get_nowait()
            self._answer(partial(_fail, found, unavailable(sentence, _RESTART)))
        self._tell([Event(n, (), "", "error", sentence, perf_counter(), RequestStats()) for n in self._tickets])
        self._wake()


def _abort_all(engine: Engine) -> None:
    for number in list(engine.requests):
        engine.abort(number)


def _settle(found: "asyncio.Future[Any]", result: Any) -> None:  # noqa: ANN401 - whatever the order returned
    if not found.done():
        found.set_result(result)


def _fail(found: "asyncio.Future[Any]", problem: Exception) -> None:
    if not found.done():
        found.set_exception(problem)
