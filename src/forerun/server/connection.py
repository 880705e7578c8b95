"""One connection: a time for its headers, and a short way out for the parts of a stream.

Does not: frame what goes out; that is h11's.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

_POUR = "forerun"  # among the extensions of a scope
Pour = Callable[[Callable[[], bytes]], bool]  # sends a part now and says so; leaves it unmade where that has to wait


class Connection(H11Protocol):
    """Hangs up on a client who is not being answered and ends no headers, however much he sends."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        super().connection_made(transport)
        self._mind()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._mind()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _mind(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()  # others bound what comes now
        elif self._patience is None:
            self._patience = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _forget(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and "extensions" not in self.scope:
            self.scope["extensions"] = {_POUR: {"pour": partial(_pour, self.cycle)}}


def pour_of(scope: Scope) -> Pour:
    """The short way of a request: past everybody who looks at what begins or ends an answer alone."""
    found: Pour = scope.get("extensions", {}).get(_POUR, {}).get("pour", _nowhere)
    return found


def _nowhere(_: Callable[[], bytes]) -> bool:
    return False


def _pour(cycle: RequestResponseCycle, part: Callable[[], bytes]) -> bool:
    if cycle.flow.write_paused or cycle.disconnected or not cycle.response_started or cycle.response_complete:
        return False
    cycle.transport.write(cycle.conn.send(h11.Data(data=part())) or b"")
    return True
