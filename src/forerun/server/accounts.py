"""What each key has used, and how much of it a key may use in a minute.

Tokens are counted as the metrics count them, so that all keys together make the server's totals. Limits are buckets
that fill steadily: a request takes its prompt's tokens when it comes, and its text's as they are written, so a bucket
may be overdrawn by what was promised already; who overdrew waits the longer.
Does not: keep anything after the server ends; know what other servers gave to the same key.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import ceil
from threading import Lock
from time import monotonic, perf_counter

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.loop import Ask, Ticket
from forerun.server.refusal import Refusal
from forerun.types import Event, owner

_MINUTE = 60.0  # seconds
_ROUNDING = 1e-6  # seconds
_KINDS = ("requests", "tokens")


@dataclass
class Usage:
    """One key's figures since the server began; those in seconds of requests that have ended."""

    requests: int = 0  # texts that were asked for and have ended
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    kv_token_seconds: float = 0.0  # entries of the cache times the seconds that they were held
    queue_seconds: float = 0.0
    compile_seconds: float = 0.0


@dataclass
class Bucket:
    """So many per minute; it begins full."""

    most: int
    clock: Callable[[], float] = monotonic
    held: float = field(init=False)
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.held, self.since = float(self.most), self.clock()

    def take(self, count: int) -> None:
        """Without asking whether there is so much."""
        self.held, self.since = self.level() - count, self.clock()

    def level(self) -> float:
        """What is in it now; below 0 what was overdrawn."""
        return min(self.most, self.held + (self.clock() - self.since) * self.most / _MINUTE)

    def wait(self, count: float) -> float:
        """Seconds until so much is in it, or all that it can hold."""
        return max(0.0, min(count, self.most) - self.level()) * _MINUTE / self.most


class Accounts:
    """Every key's usage and buckets. What is called from several threads is locked."""

    def __init__(self, requests: int = 0, tokens: int = 0, clock: Callable[[], float] = monotonic) -> None:
        """Limits per minute; 0: none."""
        self._limits, self._clock, self._lock = {"requests": requests, "tokens": tokens}, clock, Lock()
        self._usage = defaultdict[str, Usage](Usage)
        self._buckets: dict[str, dict[str, Bucket]] = {}
        self._begun = set[int]()  # the engine's numbers of those that are counted

    def observe(self, ticket: Ticket, index: int, event: Event) -> None:
        """One event of one ask."""
        ask, count = ticket.asks[index], len(event.emissions)
        key = owner(ask.scope)
        with self._lock:
            mine = self._usage[key]
            if event.request not in self._begun and count:
                self._begun.add(event.request)
                mine.prompt_tokens += len(ask.prompt)
            mine.completion_tokens += count
            if event.finish_reason is not None:
                self._begun.discard(event.request)
                mine.requests += 1
                mine.cached_tokens += event.stats.cached
                mine.kv_token_seconds += event.stats.held
                mine.queue_seconds += event.stats.queued
            self._bucket(key, "tokens", count)

    @contextmanager
    def compiling(self, key: str) -> Iterator[None]:
        """The block's time is a key's, however it ends."""
        began = perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._usage[key].compile_seconds += perf_counter() - began

    def usage(self, key: str) -> dict[str, float]:
        """One key's figures, as JSON has them."""
        with self._lock:
            return asdict(self._usage[key])

    # limits

    def arrive(self, key: str) -> None:
        """One request; Refusal where its key has none left."""
        with self._lock:
            self._pass(key, "requests", 1)

    def ask(self, key: str, asks: Sequence[Ask]) -> None:
        """What it must read; Refusal where its key has too few tokens left."""
        with self._lock:
            self._pass(key, "tokens", sum(len(ask.prompt) for ask in asks))

    def headers(self, key: str) -> dict[str, str]:
        """What OpenAI's clients read about limits; nothing where there is none."""
        found: dict[str, str] = {}
        with self._lock:
            for kind in _KINDS:
                bucket = self._bucket(key, kind)
                if bucket is not None:
                    found[f"x-ratelimit-limit-{kind}"] = str(bucket.most)
                    found[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(bucket.level())))
                    found[f"x-ratelimit-reset-{kind}"] = f"{bucket.wait(bucket.most):.3f}s"
        return found

    def _bucket(self, key: str, kind: str, count: int = 0) -> Bucket | None:
        """A key's, after so much was taken from it; None where there is no limit."""
        most = self._limits[kind]
        if not most:
            return None
        bucket = self._buckets.setdefault(key, {}).setdefault(kind, Bucket(most, self._clock))
        bucket.take(count)
        return bucket

    def _pass(self, key: str, kind: str, count: int) -> None:
        bucket = self._bucket(key, kind)
        if bucket is None:
            return
        wait = bucket.wait(count)
        if wait > _ROUNDING:
            message = f"this key may use {bucket.most} {kind} per minute and has too few left; ask again later."
            code = "rate_limit_exceeded"
            raise Refusal(429, message, kind="rate_limit_error", code=code, retry_after=max(1, ceil(wait)))
        bucket.take(count)


class RateGate:
    """Counts the requests of every key that ask for work, and says on each answer what is left."""

    def __init__(self, app: ASGIApp, accounts: Accounts) -> None:
        self.app, self.accounts = app, accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = scope.get("state", {}).get("tenant")
        if key is None:  # a path that needs none
            await self.app(scope, receive, send)
            return

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.accounts.headers(key))
            await send(message)

        try:
            if scope["method"] == "POST":
                self.accounts.arrive(key)
        except Refusal as refusal:
            await refusal.response()(scope, receive, stamped)
            return
        await self.app(scope, receive, stamped)
