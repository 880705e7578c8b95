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
from types import FrameType
from typing import Any

from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.errors import RequestError
from forerun.types import Event

# Those of `signal`, which gives names to numbers before and behind them, take ten times as long.
_set, _get = _signal.signal, _signal.getsignal


class Desk:
    """Requests of many, in one engine that nobody else steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock, self._whose = engine, Lock(), 0  # the thread that has the engine
        self._open = set[int]()  # requests of which somebody wants news
        self._news = dict[int, list[Event]]()  # of them, what steps of others brought
        self._left = list[int]()  # those of which nobody does any more
        self._handler: Any = None  # of Ctrl-C, while it waits
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

    def hear(self, running: set[int]) -> list[Event]:
        """News of these requests, without those that end by it from then on.

        It is what others' steps brought, else what one step more brings, which may be nothing.
        """
        self._take()
        try:
            found = [event for number in [*self._news] if number in running for event in self._news.pop(number)]
            if not found:
                self._dismiss()
                for event in self._engine.step():
                    if event.request in running:
                        found.append(event)
                    elif event.request in self._open:
                        self._news.setdefault(event.request, []).append(event)
            ended = [event.request for event in found if event.finish_reason is not None]
            self._open.difference_update(ended)
            running.difference_update(ended)
            return found
        finally:
            self._give()

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
        handler = _get(signal.SIGINT) if me == main_thread().ident else None
        if handler is not None:
            _set(signal.SIGINT, self._later)
        if not self._lock.acquire(blocking=wait):
            self._restore(handler)
            return False
        self._whose, self._handler = me, handler
        return True

    def _give(self) -> None:
        handler, self._handler, self._whose = self._handler, None, 0
        self._lock.release()
        self._restore(handler)

    def _later(self, number: int, frame: FrameType | None) -> None:
        """The handler of Ctrl-C meanwhile."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def _restore(self, handler: Any) -> None:  # noqa: ANN401 - whatever a handler is
        if handler is not None:
            interrupted, self._interrupted = self._interrupted, False
            _set(signal.SIGINT, handler)
            if interrupted:
                signal.raise_signal(signal.SIGINT)
