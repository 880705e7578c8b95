"""Where many ask one engine: threads, and streams that are read by turns.

Whoever wants news steps the engine for everybody, and what that brings others waits until they want it. Ctrl-C comes
between two steps, since one that is torn leaves the books of caches and drafters open; a second one comes at once.
Does not: run by itself: what nobody waits for stands still. Nor bound what waits for a slow reader, which is at most
what his request may write.
"""

import _signal  # type: ignore[import-not-found]
import signal
from collections.abc import Iterable
from threading import Lock, get_ident, main_thread
from time import sleep
from types import FrameType
from typing import Any

from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.errors import RequestError
from forerun.types import Event

# Those of `signal`, which gives names to numbers before and behind them, take ten times as long.
_set, _get = _signal.signal, _signal.getsignal
_BREATH = 1e-5  # seconds in which a thread that waits wakes up; else who is awake would have the engine again


class Desk:
    """Requests of many, in one engine that nobody else steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock, self._whose = engine, Lock(), 0  # the thread that has the engine
        self._open = set[int]()  # requests of which somebody wants news
        self._news = dict[int, list[Event]]()  # of them, what steps of others brought
        self._left = list[int]()  # those of which nobody does any more
        self._waiting = list[int]()  # threads that want the engine
        self._main = main_thread().ident  # which alone hears of Ctrl-C
        self._handler: Any = None  # of that, while it waits
        self._interrupted = False

    def add(self, running: set[int], *arguments: Any, **keywords: Any) -> Request:  # noqa: ANN401 - as `Engine.add`
        """One more request of those that are `running`, as `Engine.add` has it; RequestError if it cannot be served."""
        self._take()
        try:
            number = self._engine.add(*arguments, **keywords)
            self._open.add(number)
            running.add(number)
            return self._engine.requests[number]
        finally:
            self._give()

    def hear(self, running: set[int], steps: int = 1) -> list[Event]:
        """News of these requests, without those that end by it from then on.

        It is what others' steps brought, else what one step more brings, which may be nothing; or several `steps`, for
        what is around one takes time, as long as nothing ends and nobody else wants the engine.
        """
        self._take()
        try:
            found = self._found(running) if self._news else []
            if not found:
                self._dismiss()
                while steps and not self._step(running, found) and not self._waiting and not self._interrupted:
                    steps -= 1
            return found
        finally:
            self._give()

    def _found(self, running: set[int]) -> list[Event]:
        """What others' steps brought."""
        found = [event for number in [*self._news] if number in running for event in self._news.pop(number)]
        running.difference_update([event.request for event in found if event.finish_reason is not None])
        return found

    def _step(self, running: set[int], found: list[Event]) -> bool:
        """One step; whether something ended by it that was `running`."""
        ended = False
        for event in self._engine.step():
            mine = event.request in running
            if mine:
                found.append(event)
            elif event.request in self._open:
                self._news.setdefault(event.request, []).append(event)
            if event.finish_reason is not None:
                self._open.discard(event.request)
                running.discard(event.request)
                ended = ended or mine
        return ended

    def leave(self, running: Iterable[int]) -> None:
        """Abort these; where a step is under way, here or in a thread, before the next one."""
        self._left += running
        if self._left and self._whose != get_ident() and self._take(wait=False):
            try:
                self._dismiss()
            finally:
                self._give()

    def _dismiss(self) -> None:
        while self._left:
            number = self._left.pop()
            self._open.discard(number)
            self._news.pop(number, None)
            self._engine.abort(number)

    def _take(self, *, wait: bool = True) -> bool:
        """The engine, once no other thread has it; False where that is not waited for."""
        me = get_ident()
        if self._whose == me:
            raise RequestError("an engine was asked from within its own step; ask once that is over, or another one.")
        if me == self._main:
            self._defer()
        if not self._lock.acquire(blocking=False) and not (wait and self._wait(me)):
            self._heed(me)
            return False
        self._whose = me
        return True

    def _wait(self, me: int) -> bool:
        self._waiting.append(me)
        try:
            return self._lock.acquire()
        except BaseException:
            self._heed(me)
            raise
        finally:
            self._waiting.remove(me)

    def _give(self) -> None:
        me, self._whose = self._whose, 0
        self._lock.release()
        if self._waiting:
            sleep(_BREATH)
        self._heed(me)

    def _defer(self) -> None:
        """Ctrl-C waits from now on."""
        self._handler = _get(signal.SIGINT)
        if self._handler is not None:  # else it is not Python's to set
            _set(signal.SIGINT, self._later)

    def _later(self, number: int, frame: FrameType | None) -> None:
        """The handler meanwhile."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def _heed(self, me: int) -> None:
        """It waits no longer."""
        if me == self._main and self._handler is not None:
            interrupted, self._interrupted = self._interrupted, False
            _set(signal.SIGINT, self._handler)
            if interrupted:
                signal.raise_signal(signal.SIGINT)
