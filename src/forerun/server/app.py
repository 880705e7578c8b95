"""The routes. Each reads a body, asks the service, and says what came.

Does not: know the engine, or limit anything by itself (`limits.py`, `auth.py`, `body.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

import forerun
from forerun.errors import RequestError
from forerun.llm import LLM
from forerun.server import described
from forerun.server.accounts import Accounts, RateGate
from forerun.server.auth import OPEN, OPEN_METRICS, HostGate, KeyGate, Keys
from forerun.server.body import BodyGate, body_of
from forerun.server.described import DescribedApp, answers
from forerun.server.log import AccessLog
from forerun.server.playground import PAGE, served
from forerun.server.refusal import Refusal
from forerun.server.reply import Reply
from forerun.server.schema import CHAT, COMPLETION, Body, DetokenizeBody, TokenizeBody, named, read
from forerun.server.service import Service
from forerun.server.settings import Settings
from forerun.server.trace import tracing

B = TypeVar("B", bound=Body)
T = TypeVar("T")
_SHORT = 2048  # bytes
_TEMPLATE = 0  # a chat template may take its time for any
_ROUTES = APIRouter(redirect_slashes=False)


def create_app(llm: LLM, settings: Settings) -> FastAPI:
    """The server around a model, which it has to itself from its first request on."""
    service = Service(llm, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = gated(settings, lifespan, service.accounts)
    app.state.service = service
    app.include_router(_ROUTES)
    return app


def gated(
    settings: Settings, lifespan: Lifespan[FastAPI], accounts: Accounts, described: str | None = "/openapi.json"
) -> FastAPI:
    """An app without routes, behind everything that a request must pass; `described` is where it tells its routes."""
    app = DescribedApp(
        title="forerun",
        version=forerun.__version__,
        lifespan=lifespan,
        middleware=_gates(settings, accounts),
        openapi_url=described,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _no_such_route)
    return app


def _gates(settings: Settings, accounts: Accounts) -> list[Middleware]:
    """What a request passes, outermost first."""
    free = PAGE + (OPEN_METRICS if settings.open_metrics else OPEN)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.allow_origin,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-request-id"],
    )
    return [
        Middleware(AccessLog),
        *tracing(),
        Middleware(HostGate, settings=settings),
        *([cors] if settings.allow_origin else []),
        Middleware(KeyGate, keys=Keys(settings.keys()), free=free),
        Middleware(RateGate, accounts=accounts),
        Middleware(BodyGate, most=settings.max_body),
    ]


async def _refused(_: Request, problem: Any) -> Response:  # noqa: ANN401 - the RequestError that it is called for
    return named(problem).response()


async def _no_such_route(request: Request, problem: Any) -> Response:  # noqa: ANN401 - the HTTPException
    message = f"there is no {request.method} at this path; see /openapi.json for those that are."
    answer = Refusal(problem.status_code, message, code="not_found").response()
    answer.headers.update(problem.headers or {})  # a 405 says which methods are allowed
    return answer


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


async def _take(request: Request, kind: type[B], function: Callable[[B], T], short: int = _SHORT) -> T:
    """What a function makes of the body; beside the event loop, but for a short one: it would take too long."""
    raw = await body_of(request, _service(request).settings.read_timeout)

    def work() -> T:
        return function(read(kind, raw))

    return work() if len(raw) < short else await asyncio.to_thread(work)


@_ROUTES.get("/", include_in_schema=False)
@_ROUTES.get("/page/{name}", include_in_schema=False)
async def page(name: str = "index.html") -> Response:
    """A file of the playground."""
    return served(name)


@_ROUTES.post(
    "/v1/completions", openapi_extra=described.body(COMPLETION), responses=answers(described.COMPLETED, stream=True)
)
async def completions(request: Request) -> Response:
    """Continue a text."""
    service, tenant = _service(request), request.state.tenant
    order = await _take(request, COMPLETION, partial(service.completion, tenant))
    return Reply(service, order, tenant)


@_ROUTES.post(
    "/v1/chat/completions", openapi_extra=described.body(CHAT), responses=answers(described.CHATTED, stream=True)
)
async def chat(request: Request) -> Response:
    """Answer a conversation."""
    service, tenant = _service(request), request.state.tenant
    order = await _take(request, CHAT, partial(service.chat, tenant), _TEMPLATE)
    return Reply(service, order, tenant)


@_ROUTES.get("/v1/models", responses=answers(described.MODELS, links=described.TO_MODEL))
async def models(request: Request) -> Response:
    """What is served."""
    return JSONResponse({"object": "list", "data": [_model(_service(request))]})


@_ROUTES.get("/v1/models/{name:path}", operation_id="model", responses=answers(described.MODEL))
async def model(request: Request, name: str) -> Response:
    """One model."""
    _service(request).check_model(name)
    return JSONResponse(_model(_service(request)))


def _model(service: Service) -> dict[str, Any]:
    engine = service.llm.engine
    return {
        "id": service.name,
        "object": "model",
        "created": service.began,
        "owned_by": "forerun",
        "max_model_len": engine.limits.context_length,
        "exact": engine.caveat is None,
        "caveat": engine.caveat,
    }


@_ROUTES.post(
    "/tokenize",
    operation_id="tokenize",
    openapi_extra=described.body(TokenizeBody),
    responses=answers(described.TOKENS, links=described.TO_TEXT),
)
async def tokenize(request: Request) -> Response:
    """Tokens of a text or of a conversation."""
    return JSONResponse(await _take(request, TokenizeBody, _service(request).tokenize, _TEMPLATE))


@_ROUTES.post(
    "/detokenize",
    operation_id="detokenize",
    openapi_extra=described.body(DetokenizeBody),
    responses=answers(described.PROMPT, links=described.TO_TOKENS),
)
async def detokenize(request: Request) -> Response:
    """Text of tokens."""
    return JSONResponse(await _take(request, DetokenizeBody, _service(request).detokenize))


@_ROUTES.get("/health", responses=answers(described.STATUS, failing=True))
async def health(request: Request) -> Response:
    """Whether the engine steps; 503 where it broke or hangs."""
    well = _service(request).well
    return JSONResponse({"status": "ok" if well else "failed"}, 200 if well else 503)


@_ROUTES.get("/ready", responses=answers(described.STATUS, failing=True))
async def ready(request: Request) -> Response:
    """Whether new requests are taken in; 503 while the server ends."""
    service = _service(request)
    open_ = service.loop.broken is None and service.admission.leaving is None
    return JSONResponse({"status": "ready" if open_ else "leaving"}, 200 if open_ else 503)


@_ROUTES.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus metrics; the engine's last known ones where it broke."""
    service = _service(request)
    if service.loop.broken is None:
        await service.loop.call(service.metrics.take)
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@_ROUTES.get("/usage", responses=answers(described.USED))
async def usage(request: Request) -> Response:
    """What the caller's key has used since the server began."""
    return JSONResponse(_service(request).accounts.usage(request.state.tenant))


@_ROUTES.get("/version", responses=answers(described.VERSION))
async def version() -> Response:
    """Of forerun."""
    return JSONResponse({"version": forerun.__version__})
