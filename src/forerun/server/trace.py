"""A span for every request that asks for text, where the environment names a collector of OpenTelemetry.

Names follow the semantic conventions of generative AI; times that these do not name yet have those of another engine.
Does not: hold a prompt, a text, a key or a header; send anything where OTEL_EXPORTER_OTLP_ENDPOINT (or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) is not set; speak another protocol than OTLP over HTTP.
"""

import asyncio
import logging
import os
from importlib.util import find_spec
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOG = logging.getLogger("forerun.server")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORTER = "opentelemetry.exporter.otlp.proto.http"


def tracing() -> list[Middleware]:
    """What traces requests; nothing where nobody collects traces, or what sends them is not installed."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return []
    if find_spec("opentelemetry") is None or find_spec(EXPORTER) is None:
        _LOG.warning("the environment names a collector of traces; pip install 'forerun[telemetry]' to send them.")
        return []
    return [Middleware(Traced, provider=collected())]


def collected() -> Any:  # noqa: ANN401 - OpenTelemetry's provider, which may not be installed
    """Spans on their way to the collector, many at a time, off the event loop."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "forerun"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Traced:
    """Makes a span of every POST, below the one that its `traceparent` names; `scope["state"]["about"]` fills it."""

    def __init__(self, app: ASGIApp, provider: Any) -> None:  # noqa: ANN401
        self.app, self.provider, self.tracer = app, provider, provider.get_tracer("forerun")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":

            async def ending(message: Message) -> None:
                if message["type"].startswith("lifespan.shutdown."):  # behind it the server waits for nothing
                    await asyncio.to_thread(self.provider.shutdown)  # what is not sent yet
                await send(message)

            await self.app(scope, receive, ending)
        elif scope["type"] == "http" and scope["method"] == "POST":
            await self._trace(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _trace(self, scope: Scope, receive: Receive, send: Send) -> None:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent, status = TraceContextTextMapPropagator().extract(dict(Headers(scope=scope))), 0
        about: dict[str, Any] = scope.setdefault("state", {}).setdefault("about", {})

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        span = self.tracer.start_span("POST", parent, kind=SpanKind.SERVER)
        try:
            await self.app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            span.set_attributes({"http.request.method": "POST", "http.route": route, **about})
            if status:
                span.set_attribute("http.response.status_code", status)
            if status >= 500:  # noqa: PLR2004 - the server's own faults
                span.set_status(StatusCode.ERROR)
            span.update_name(_name(about, route))
            span.end()


def _name(about: dict[str, Any], route: str) -> str:
    if "gen_ai.operation.name" not in about:
        return f"POST {route}"
    return f"{about['gen_ai.operation.name']} {about['gen_ai.request.model']}"
