"""Server-sent events, to a reader who may be slow or gone.

Does not: hold more than the transport does; what is not read yet waits where it comes from.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from starlette.types import Receive, Send

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else a proxy may wait for the end
]


def encode(value: Mapping[str, Any]) -> bytes:
    """One event; ASCII, so that no reader can split a character."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


async def stream(send: Send, parts: AsyncIterator[bytes], seconds: float) -> None:
    """Send parts as they come; TimeoutError where the reader takes none for so long."""
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    async with asyncio.timeout(None) as limit:
        patience = _Patience(limit, seconds)
        try:
            async for part in parts:
                patience.begin()
                await send({"type": "http.response.body", "body": part, "more_body": True})
                patience.end()
            patience.begin()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            patience.stop()


class _Patience:
    """Lets a limit pass once a thing has lasted too long. A timer for each of many costs more than to send a part."""

    def __init__(self, limit: asyncio.Timeout, seconds: float) -> None:
        self._limit, self._seconds, self._home = limit, seconds, asyncio.get_running_loop()
        self._began: float | None = None
        self._timer = self._home.call_later(seconds, self._look)

    def begin(self) -> None:
        """From now on."""
        self._began = self._home.time()

    def end(self) -> None:
        """It was in time."""
        self._began = None

    def stop(self) -> None:
        """There will be no more."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._home.time()
        due = (now if self._began is None else self._began) + self._seconds
        if due <= now:
            self._limit.reschedule(now)
        else:
            self._timer = self._home.call_at(due, self._look)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, but stop once the client goes."""
    doing, leaving = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
