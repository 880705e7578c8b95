"""Where many ask one engine: threads, and streams that are read by turns.

Whoever wants news steps the engine for everybody, and what that brings others waits until they want it.
Does not: run by itself: what nobody waits for stands still. Nor bound what waits for a slow reader, which is at most
what his request may write.
"""

from collections.abc import Collection, Iterable
from threading import Lock, get_ident
from typing import Any

from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.errors import RequestError
from forerun.types import Event


class Desk:
    """Requests of many, in one engine that nobody else steps."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock, self._whose = engine, Lock(), 0  # the thread that has the engine
        self._open = set[int]()  # requests of which somebody wants news
        self._news = dict[int, list[Event]]()  # of them, what steps of others brought
        self._left = list[int]()  # those of which nobody does any more

    def add(self, *arguments: Any, **keywords: Any) -> Request:  # noqa: ANN401 - as `Engine.add`
        """A new request, as `Engine.add` has it; RequestError for what cannot be served."""
        self._take()
        try:
            number = self._engine.add(*arguments, **keywords)
            self._open.add(number)
            return self._engine.requests[number]
        finally:
            self._give()

    def hear(self, numbers: Collection[int]) -> list[Event]:
        """News of these requests: what others' steps brought, else what one step more brings; it may be nothing."""
        self._take()
        try:
            found = [event for number in [*self._news] if number in numbers for event in self._news.pop(number)]
            if not found:
                self._dismiss()
                for event in self._engine.step():
                    if event.request in numbers:
                        found.append(event)
                    elif event.request in self._open:
                        self._news.setdefault(event.request, []).append(event)
            self._open.difference_update([event.request for event in found if event.finish_reason is not None])
            return found
        finally:
            self._give()

    def leave(self, numbers: Iterable[int]) -> None:
        """Abort what still runs of these: now, or before the next step if one is under way, here or in a thread."""
        self._left += numbers
        if self._lock.acquire(blocking=False):
            try:
                self._dismiss()
            finally:
                self._lock.release()

    def _take(self) -> None:
        """The engine, once no other thread has it."""
        if self._whose == get_ident():
            raise RequestError("an engine was asked from within its own step; ask once that is over, or another one.")
        self._lock.acquire()
        self._whose = get_ident()

    def _give(self) -> None:
        self._whose = 0
        self._lock.release()

    def _dismiss(self) -> None:
        while self._left:
            number = self._left.pop()
            self._open.discard(number)
            self._news.pop(number, None)
            self._engine.abort(number)
