"""One replica: the server's app beside a model of its own, asked through Ray instead of a socket.

Does not: listen anywhere; answer otherwise than `forerun serve` does, which it is.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from starlette.types import Message

from forerun.llm import LLM
from forerun.server.app import create_app
from forerun.server.service import Service
from forerun.server.settings import Settings


@dataclass(frozen=True)
class Asked:
    """One HTTP request, whole."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keys: tuple[str, ...] = ()  # what the router goes by

    def scope(self) -> dict[str, Any]:
        """The same as ASGI has it."""
        about = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
        where = {"method": self.method, "path": self.path, "raw_path": self.path.encode(), "root_path": ""}
        return {**about, **where, "query_string": self.query, "headers": list(self.headers)}


class Replica:
    """A model, and the app around it."""

    def __init__(self, config: dict[str, Any], settings: Settings) -> None:
        self.app = create_app(LLM(**config), settings)
        self.service: Service = self.app.state.service
        self.name = token_hex(4)  # what its metrics are called
        self.alive = False

    def _live(self) -> None:
        """Start the engine's thread; not before there is an event loop to tell its news."""
        if not self.alive:
            self.alive = True
            self.service.start()

    async def __call__(self, asked: Asked) -> AsyncIterator[list[Message]]:
        """The answer as ASGI messages, as many at once as there are; first none, to say that the request is here."""
        self._live()
        yield []
        said: asyncio.Queue[Message | None] = asyncio.Queue()
        doing = asyncio.create_task(self.app(asked.scope(), _reader(asked.body), said.put))
        doing.add_done_callback(lambda _: said.put_nowait(None))
        try:
            while (message := await said.get()) is not None:
                messages = [message]
                while not said.empty() and (message := said.get_nowait()) is not None:
                    messages.append(message)
                yield messages
                if message is None:
                    break
            await doing
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def metrics(self) -> tuple[str, str]:
        """Its name, and what a scrape of it alone would read."""
        self._live()
        if self.service.loop.broken is None:
            await self.service.loop.call(self.service.metrics.take)
        return self.name, self.service.metrics.text().decode()

    async def check_health(self) -> None:
        """Ray ends a replica that fails this, and starts another."""
        self._live()
        if not self.service.well:
            raise RuntimeError("the engine broke or hangs.")


def _reader(body: bytes) -> Any:  # noqa: ANN401 - an ASGI receive
    """The body, and then nothing more: whoever leaves has this request cancelled."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    return receive
