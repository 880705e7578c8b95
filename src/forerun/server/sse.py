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
    async for part in parts:
        async with asyncio.timeout(seconds):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    async with asyncio.timeout(seconds):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
