"""Keeps a drafter from doing harm: what raises, hangs or returns nonsense costs the draft, never the request.

A drafter that hangs in Python is interrupted by a watchdog; one that hangs inside a C call is interrupted when that
call returns. After three failures in a row the drafter rests for twice as many proposals each time, then is tried
again; a failure in `start` or `stop` counts as well.
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
        for draft, budget in zip(drafts, budgets, strict=True):
            draft.check(self._vocab, budget)
        self._failures = 0
        return drafts

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self._try(None, self.inner.observe, batch, outcomes)

    def stop(self, context: Context) -> None:
        self._try(None, self.inner.stop, context)

    def _try(self, otherwise: Any, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        try:
            return self._watchdog.call(function, *arguments)
        except Exception as problem:  # noqa: BLE001 - whatever a drafter does, decoding goes on; it is counted and said
            self._stats.draft_failures += 1
            self._failures += 1
            if self._failures >= _PATIENCE:
                self._rest = 2 ** min(self._failures, 16)
            if self._failures in (1, _PATIENCE):
                _LOG.warning("the drafter failed and plain decoding goes on: %s: %s", type(problem).__name__, problem)
            return otherwise
