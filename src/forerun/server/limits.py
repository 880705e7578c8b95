"""Who may come in: how many asks run and wait, in all and per key.

Does not: order them; that is the scheduler's.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from forerun.server.refusal import Refusal, invalid, unavailable

_SOON = 1  # seconds


class Admission:
    """Counts asks that run or wait; belongs to the event loop."""

    def __init__(self, room: int, per_key: int = 0) -> None:
        self.room, self.per_key = room, min(per_key or room, room)
        self.inside: Counter[str] = Counter()
        self.empty = asyncio.Event()  # whether nobody is inside; set only once nobody is let in
        self.leaving: int | None = None  # seconds to wait for another server, once this one takes nobody in

    @contextmanager
    def seats(self, key: str, count: int) -> Iterator[None]:
        """Room for `count` asks of a key; Refusal where there is none."""
        self._check(key, count)
        self.inside[key] += count
        try:
            yield
        finally:
            self.inside[key] -= count
            if not self.inside[key]:
                del self.inside[key]
            self._notice()

    def close(self, seconds: int) -> None:
        """Let nobody in any more; `seconds` is when they may ask again."""
        self.leaving = seconds
        self._notice()

    def _notice(self) -> None:
        if self.leaving is not None and not self.inside:
            self.empty.set()

    def _check(self, key: str, count: int) -> None:
        if self.leaving is not None:
            raise unavailable("the server is shutting down; ask another one, or later.", self.leaving)
        if count > self.per_key:
            raise invalid(f"the request asks for {count} texts and may have {self.per_key}; ask for fewer.", "n")
        if self.inside.total() + count > self.room:
            raise _full(f"{self.inside.total()} requests run and wait, and there is room for {self.room}")
        if self.inside[key] + count > self.per_key:
            raise _full(f"this key has {self.inside[key]} requests and may have {self.per_key}")


def _full(why: str) -> Refusal:
    return Refusal(
        429, f"{why}; ask again in a moment.", kind="rate_limit_error", code="rate_limit_exceeded", retry_after=_SOON
    )
