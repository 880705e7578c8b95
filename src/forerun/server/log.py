"""One line per request: its id, route, status and time. Every answer carries the id, one for a bug too.

Does not: log a prompt, a text, a key, a header, or a path that is not a route of ours.
"""

import logging
import re
from secrets import token_hex
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import log_bug
from forerun.server.refusal import broken

_LOG = logging.getLogger("forerun.server")
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class AccessLog:
    """Gives every request an id, its caller's own where that is sane, and logs how it ended."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given, began, status = Headers(scope=scope).get("x-request-id", ""), perf_counter(), 0
        scope.setdefault("state", {})["id"] = name = given if _SANE.fullmatch(given) else token_hex(12)

        async def stamped(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        try:
            await self.app(scope, receive, stamped)
        except ClientDisconnect:
            pass  # in the midst of his request; the line below says so
        except Exception as problem:
            log_bug(_LOG, f"{name} failed", problem)
            if status:
                raise  # an answer that has begun can only be cut off
            await broken("the server failed; its log has the reason.").response()(scope, receive, stamped)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            seconds = perf_counter() - began
            _LOG.info("%s %s %s %s %.3fs", name, scope["method"], route, status or "left", seconds)
