"""The size of a request's headers and body, and the time in which the latter must come.

Does not: unpack compressed bodies, which may be larger than they look.
"""

import asyncio

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.refusal import Refusal

HEADERS = 100  # of one request; how many bytes they may have is the listening server's to say


class BodyGate:
    """Refuses too many headers, and bodies that are too large, by their announced length or once they are."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._announced(Headers(scope=scope))
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            return
        await self.app(scope, self._counting(receive), send)

    def _announced(self, headers: Headers) -> None:
        if len(headers) > HEADERS:
            raise Refusal(431, f"the request has more than {HEADERS} headers; send fewer.", code="too_many_headers")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > self.most:  # noqa: PLR2004 - digits of 2**64
            raise self._too_large()
        if headers.get("content-encoding", "identity") != "identity":
            raise Refusal(415, "the body is compressed; send it as it is.", code="unsupported_media_type")

    def _counting(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> Refusal:
        message = f"the body has more than {self.most} bytes; send less, or start the server with a larger --max-body."
        return Refusal(413, message, code="request_too_large")


async def body_of(request: Request, seconds: float) -> bytes:
    """All of it; Refusal where it does not come, or is not said to be JSON: a web page may send anything else."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the content-type is not application/json; send JSON.", code="unsupported_media_type")
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {seconds:g} s; send it at once.", code="timeout") from None
