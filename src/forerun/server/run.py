"""Run a server until it is told to end: in the foreground with signals, or beside other code.

Does not: serve TLS; put a proxy before it.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from threading import Event, Thread
from typing import Protocol

import uvicorn
from fastapi import FastAPI

from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.server.app import create_app
from forerun.server.connection import Connection
from forerun.server.settings import Settings

_LOG = logging.getLogger("forerun.server")
_HEADERS = 64 * 1024  # bytes that the headers of a request may have
_HEAD = 10  # seconds that the headers of a request may take
_GOODBYE = 2  # seconds in which closed connections must empty
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux


class _Server(uvicorn.Server):
    """Leaves signals to `serve`, which drains first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(settings: Settings) -> socket.socket:
    """The socket; ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # said, so that asyncio sets TCP_NODELAY
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if _USER_TIMEOUT is not None:  # the kernel drops a connection whose reader takes nothing
        listener.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, max(1, round(settings.write_timeout * 1000)))
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()  # who connects before the server is up waits a moment
    except (OSError, OverflowError) as problem:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        raise ConfigError(f"the server cannot listen at {place} ({problem}); choose another --port.") from problem
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Served(Protocol):
    """What answers behind an app."""

    settings: Settings

    async def drain(self) -> None:
        """Take nobody in any more; let those inside finish, for some time."""

    async def stop(self) -> None:
        """Nothing runs after this."""


async def _serve(app: FastAPI, listener: socket.socket, started: Callable[["Ending"], None]) -> None:
    options = uvicorn.Config(
        app,
        loop="asyncio",
        http=Connection,
        timeout_keep_alive=max(1, ceil(min(_HEAD, app.state.service.settings.read_timeout))),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEADERS,
        timeout_graceful_shutdown=_GOODBYE,
    )
    server = _Server(options)
    ending = Ending(app.state.service, server)
    started(ending)
    try:
        await server.serve([listener])
    finally:
        await app.state.service.stop()  # when it ends at once, nobody tells the app; Python may not end before it


class Ending:
    """Ends a server: first gently, and at the second call at once."""

    def __init__(self, service: Served, server: uvicorn.Server) -> None:
        self.service, self.server = service, server
        self.home = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        """On the event loop."""
        if self._draining is None:
            self._draining = self.home.create_task(self._drain())
        else:
            self.server.should_exit = self.server.force_exit = True

    async def _drain(self) -> None:
        _LOG.info("ending: no new requests; those that run get %g s", self.service.settings.drain_timeout)
        await self.service.drain()
        self.server.should_exit = True


def serve(app: FastAPI, settings: Settings, say: Callable[[str], None]) -> None:
    """Until a signal; `say` hears where clients find the server."""
    with listen(settings) as listener:

        def started(ending: Ending) -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                ending.home.add_signal_handler(number, ending)
            say(url_of(listener))

        gc.collect()
        gc.freeze()  # what is here now stays: to look through it again would hold up a step as long as ninety others
        try:
            asyncio.run(_serve(app, listener, started))
        finally:
            gc.unfreeze()


@contextmanager
def in_background(llm: LLM, settings: Settings) -> Iterator[str]:
    """A server beside this code while the block runs; its address."""
    with beside(create_app(llm, settings), settings) as url:
        yield url


@contextmanager
def beside(app: FastAPI, settings: Settings) -> Iterator[str]:
    """The same for any app."""
    begun, endings = Event(), list[Ending]()

    def started(ending: Ending) -> None:
        endings.append(ending)
        begun.set()

    with listen(settings) as listener:
        thread = Thread(target=lambda: asyncio.run(_serve(app, listener, started)), name="forerun-server")
        thread.start()
        begun.wait()
        try:
            yield url_of(listener)
        finally:
            endings[0].home.call_soon_threadsafe(endings[0])
            thread.join()
