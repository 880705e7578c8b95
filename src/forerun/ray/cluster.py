"""Ray, where it is installed: found or started, and told to send nothing.

Does not: open Ray's dashboard, or outlive the block that asked for it, but for a cluster that was there before.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forerun.config import Config
from forerun.errors import ConfigError

_LOG = logging.getLogger("forerun.ray")


@contextmanager
def connected() -> Iterator[None]:
    """A connection that there is, or to the cluster that RAY_ADDRESS or `ray start` names, or to one made for this."""
    if find_spec("ray") is None:
        raise ConfigError("ray is not installed, and replicas need it; run pip install 'forerun[ray]'.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def everywhere(config: dict[str, Any]) -> dict[str, Any]:
    """The same keywords for another process, on another machine perhaps: whole paths, and no more threads than asked.

    A replica is one thread unless told otherwise: Ray counts what it gives away.
    """
    parsed, _ = Config.parse(**config)
    folder = Path(parsed.model).expanduser()
    model = str(folder.resolve()) if folder.is_dir() else parsed.model
    return {**config, "model": model, "threads": parsed.threads or 1}


def share(config: dict[str, Any]) -> dict[str, Any]:
    """What a replica takes of a machine, in Ray's words; a GPU where `device` says so."""
    return {"num_cpus": config["threads"], "num_gpus": int(config.get("device") == "cuda")}


def tell_if_none_fits(config: dict[str, Any]) -> None:
    """A warning where Ray will wait for a machine, as none that is there has so many processors or GPUs."""
    import ray

    nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    machines = [node["Resources"] for node in nodes() if node["Alive"]]
    taken = share(config)
    wanted = {"CPU": taken["num_cpus"], "GPU": taken["num_gpus"]}
    if not any(all(there.get(name, 0) >= count for name, count in wanted.items()) for there in machines):
        asked = " and ".join(f"{count} {name}s" for name, count in wanted.items() if count)
        _LOG.warning("an engine asks for %s, which no machine of this cluster has; Ray waits for one.", asked)
