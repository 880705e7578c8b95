"""Who may call: a key for every path but a few, and a Host that is ours.

Keys are compared by their digests in constant time, and all of them every time. What one key's requests leave behind
(caches, learned drafts) is kept apart from another's by the key's digest.
Does not: know users, or hold a key in the clear longer than the start of the server takes.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.server.refusal import Refusal
from forerun.server.settings import Settings

OPEN = ("/health", "/ready")
OPEN_METRICS = (*OPEN, "/metrics")


def _digest(key: bytes) -> bytes:
    return sha256(b"forerun key:" + key).digest()


class Keys:
    """The keys that are known; none: everybody may call."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def scope(self, authorization: str) -> str:
        """A name for the caller that does not tell his key; Refusal without a known one."""
        if not self._digests:
            return ""
        scheme, _, key = authorization.partition(" ")
        given, found = _digest(key.strip().encode("latin-1")), b""
        for digest in self._digests:  # all of them, so that time tells nothing
            if hmac.compare_digest(given, digest):
                found = digest
        if not found or scheme.lower() != "bearer":
            raise Refusal(401, "the API key is missing or unknown; send it as a bearer token.", code="invalid_api_key")
        return found.hex()[:32]


class KeyGate:
    """Lets requests through that have a key; `scope["state"]["tenant"]` says whose they are."""

    def __init__(self, app: ASGIApp, keys: Keys, free: tuple[str, ...] = OPEN) -> None:
        self.app, self.keys, self.free = app, keys, free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self.free:
            try:
                scope["state"]["tenant"] = self.keys.scope(Headers(scope=scope).get("authorization", ""))
            except Refusal as refusal:
                await refusal.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


class HostGate:
    """Refuses requests that name another host: a web page could send them here under a name of its own.

    A server that other machines can reach has names that it does not know; it checks only if it was told some.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        local = ("localhost", "127.0.0.1", "::1", settings.host) if settings.loopback else ()
        self.app, self.hosts = app, {*local, *settings.allow_host} if local or settings.allow_host else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.hosts is not None:
            host = Headers(scope=scope).get("host", "")
            if _name(host) not in self.hosts:
                refusal = Refusal(403, "the Host header names another server; add --allow-host if it is this one.")
                await refusal.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _name(host: str) -> str:
    """A Host header without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()
