"""What a client is told when it cannot have what it asked for: OpenAI's error object.

Does not: hold a path, a trace or an address of this machine.
"""

from typing import Any

from fastapi.responses import JSONResponse

from forerun.errors import RequestError

_UNREAD = (408, 413, 415, 431)  # where the rest of a request is not read: else it could come for ever
INVALID, SERVER = "invalid_request_error", "server_error"


class Refusal(RequestError):  # noqa: N818 - it is an answer
    """One answer that is an error: its sentence, and what a program reads of it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param, self.code, self.retry_after = status, kind, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The same as an answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status in _UNREAD:
            headers["Connection"] = "close"
        return JSONResponse(self.body, self.status, headers)


def invalid(message: str, param: str | None = None) -> Refusal:
    """The request is wrong."""
    return Refusal(400, message, param=param)


def broken(message: str) -> Refusal:
    """The server is."""
    return Refusal(500, message, kind=SERVER)


def unavailable(message: str, retry_after: int) -> Refusal:
    """Not now."""
    return Refusal(503, message, kind=SERVER, code="unavailable", retry_after=retry_after)
