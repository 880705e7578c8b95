"""Keeps a drafter from doing harm: what raises, hangs or returns nonsense costs the draft, never the request.

One draft that is none costs itself and not its neighbours; a call that raises or hangs costs the drafts of that call.
A drafter that hangs in Python is interrupted by a watchdog; one that hangs inside a C call is interrupted when that
call returns. After three calls in a row of which nothing came the drafter rests for twice as many proposals each time,
then is tried again; a failure in `start` or `stop` counts as well.
Does not: repair the drafter's state; its requests go on with whatever it proposes next.
"""

import ctypes
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from forerun.drafters.contract import Drafter
from forerun.engine.stats import EngineStats
from forerun.errors import DraftError
from forerun.types import Context, Draft, Outcome, Setup

_LOG = logging.getLogger("forerun")
_NOTHING = Draft()
_PATIENCE = 3  # failures in a row before the drafter rests


class DraftTimeoutError(Exception):
    """Raised inside a drafter that took too long."""


class Watchdog:
    """Raises DraftTimeoutError in a thread that stays in one call for longer than `timeout` seconds.

    Its own thread starts with the first call and ends when nobody holds the watchdog any more.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout, self._lock = timeout, threading.Lock()
        self._call, self._seen, self._fired = 0, 0, False
        self._busy: int | None = None  # the thread that is in a watched call
        self._started = False

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - passes through
        """function(*arguments), or DraftTimeoutError."""
        if not self._started:
            self._started, gone = True, threading.Event()
            weakref.finalize(self, gone.set)
            name, watched = "forerun-watchdog", weakref.ref(self)
            threading.Thread(target=_watch, args=(watched, gone, self.timeout), name=name, daemon=True).start()
        self._fired, self._call, self._busy = False, self._call + 1, threading.get_ident()
        try:
            return function(*arguments)
        finally:
            with self._lock:
                self._busy = None
            if self._fired:  # let an interrupt that was on its way arrive here and not in the engine
                for _ in range(100):
                    time.sleep(0)

    def look(self) -> None:
        """Interrupt the call that was under way at the last look as well."""
        with self._lock:
            if self._busy is not None and self._call == self._seen and not self._fired:
                self._fired = True
                thread = ctypes.c_ulong(self._busy)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(DraftTimeoutError))
            self._seen = self._call


def _watch(watched: "weakref.ref[Watchdog]", gone: threading.Event, timeout: float) -> None:
    """Look once per timeout; holds no reference in between, so that the watchdog can go."""
    while not gone.wait(timeout):
        watchdog = watched()
        if watchdog is not None:
            watchdog.look()
        del watchdog


class Guard(Drafter):
    """Wraps a drafter with the same contract; `stats.draft_failures` counts what went wrong."""

    def __init__(self, inner: Drafter, setup: Setup, stats: EngineStats, timeout: float) -> None:
        self.inner, self.facts, self.hidden = inner, inner.facts, inner.hidden
        self._vocab, self._stats, self._watchdog = setup.vocab, stats, Watchdog(timeout)
        self._failures, self._rest = 0, 0

    @property
    def listens(self) -> bool:
        return self.inner.listens

    @property
    def watches(self) -> bool:
        return self.inner.watches

    def start(self, context: Context) -> Any:  # noqa: ANN401 - the drafter's own
        return self._try(None, self.inner.start, context)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        nothing = [_NOTHING] * len(batch)
        if self._rest > 0:
            self._rest -= 1
            return nothing
        drafts: list[Draft] = self._try(nothing, self._proposal, batch, budgets)
        return drafts

    def _proposal(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        drafts = self.inner.propose(batch, budgets)
        if len(drafts) != len(batch):
            raise DraftError(f"{len(drafts)} drafts came for {len(batch)} requests; return one per request.")
        before = self._stats.draft_failures
        sound = [self._sound(draft, budget) for draft, budget in zip(drafts, budgets, strict=True)]
        if self._stats.draft_failures - before < len(batch):
            self._failures = 0
        else:
            self._tire()
        return sound

    def _sound(self, draft: Draft, budget: int) -> Draft:
        """The draft, or an empty one where it is none."""
        try:
            draft.check(self._vocab, budget)
        except Exception as problem:  # noqa: BLE001 - whatever came instead of a draft, the others are not to blame
            self._count(problem)
            return _NOTHING
        if draft.error is not None:
            self._count(DraftError(draft.error))
        return draft

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self._try(None, self.inner.observe, batch, outcomes)

    def pause(self, context: Context) -> None:
        self._try(None, self.inner.pause, context)

    def resume(self, context: Context) -> None:
        self._try(None, self.inner.resume, context)

    def stop(self, context: Context) -> None:
        self._try(None, self.inner.stop, context)

    def _try(self, otherwise: Any, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        try:
            return self._watchdog.call(function, *arguments)
        except Exception as problem:  # noqa: BLE001 - whatever a drafter does, decoding goes on; it is counted and said
            self._count(problem)
            self._tire()
            return otherwise

    def _count(self, problem: Exception) -> None:
        """Count a failure, and say it: the first, then whenever there are twice as many."""
        self._stats.draft_failures += 1
        if self._stats.draft_failures.bit_count() == 1:
            name = type(problem).__name__
            _LOG.warning("the drafter failed and decoding goes on without its draft: %s: %s", name, problem)

    def _tire(self) -> None:
        """Nothing came of a call: after a few in a row the drafter rests."""
        self._failures += 1
        if self._failures >= _PATIENCE:
            self._rest = 2 ** min(self._failures, 16)
