"""`forerun serve --replicas`: an application of Ray Serve, and the front that this process serves it by.

Does not: use Ray's own proxies: what may come in is bounded by the server's gates, and drained by its signals.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any

from fastapi import FastAPI

from forerun.config import Config
from forerun.errors import ConfigError
from forerun.ray.cluster import connected, everywhere, share
from forerun.ray.front import Replicas, create_front
from forerun.ray.replica import Asked, Replica
from forerun.server.run import serve as listen_and_serve
from forerun.server.settings import Settings

_BESIDE = 16  # requests that take no seat: of health, models, metrics


@contextmanager
def deployed(config: dict[str, Any], settings: Settings) -> Iterator[FastAPI]:
    """The front of running replicas; they end with the block."""
    with connected():
        import ray.exceptions
        from ray import serve

        config, name = everywhere(config), f"forerun-{token_hex(4)}"
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        try:
            handle = serve.run(_application(config, settings), name=name, route_prefix=None)
        except RuntimeError as problem:
            message = "the replicas did not start; look at Ray's log, or try the same flags without --replicas"
            raise ConfigError(f"{message}.") from problem
        stream, room = handle.options(stream=True), settings.span[1] * _room(config, settings)
        end = partial(serve.delete, name)
        found = Replicas(partial(_ask, stream), partial(_metrics, handle), ray.exceptions.RayError, end)
        yield create_front(found, settings, room)


def serve(config: dict[str, Any], settings: Settings, say: Callable[[str], None]) -> None:
    """Until a signal; `say` hears where clients find the front."""
    with deployed(config, settings) as app:
        listen_and_serve(app, settings, say)


def _application(config: dict[str, Any], settings: Settings) -> Any:  # noqa: ANN401 - Ray's application
    from ray import serve

    fewest, most = settings.span
    busy = config.get("max_requests", Config.max_requests)
    scaling = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": busy}
    deployment: Any = serve.deployment(
        Replica,
        name="replica",
        **({"num_replicas": most} if fewest == most else {"autoscaling_config": scaling}),
        max_ongoing_requests=_room(config, settings) + _BESIDE,
        ray_actor_options=share(config),
        request_router_config={
            "request_router_class": "forerun.ray.router.AffinityRouter",
            "request_router_kwargs": {"slack": busy},
        },
        graceful_shutdown_timeout_s=settings.drain_timeout,
        health_check_period_s=max(1.0, settings.stall_timeout),
    )
    return deployment.bind(config, replace(settings, api_key=settings.keys(), api_key_file=""))


def _room(config: dict[str, Any], settings: Settings) -> int:
    """Requests that one replica lets in."""
    return int(config.get("max_requests", Config.max_requests)) + settings.max_queue


def _ask(stream: Any, asked: Asked) -> Any:  # noqa: ANN401 - Ray's handle and response
    return stream.remote(asked)


async def _metrics(handle: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - Ray's handle
    return list(await handle.broadcast("metrics").results_async())
