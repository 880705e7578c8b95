"""Measured costs are kept: a file per machine, model, precision and version, in the user's cache folder.

A file that is torn, of another version or of something else counts as none: what it should say is measured and written
anew. One that cannot be read or written costs the time of measuring, and nothing more. What was measured beside other
processes that had the cores is not kept.
Does not: notice that a machine has become slower since; measure twice where two processes ask at the same time and
the second could have waited (the last one's file stays).
"""

import json
import logging
import math
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from forerun.errors import ForerunError
from forerun.files import write_whole
from forerun.models.contract import ModelInfo
from forerun.types import Costs

FORMAT = 4
_LOG = logging.getLogger("forerun")


def folder() -> Path | None:
    """Where a user's caches lie; None where nobody's home is known."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):
        return (base if base.is_absolute() else Path.home() / ".cache") / "forerun" / "costs"
    return None


def subject(info: ModelInfo, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """What costs depend on: processor or GPU, model and its precision, versions, and what the caller knows besides."""
    device = info.layout.device
    return {
        "cpu": cpu_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "model": info.name,
        "weights": info.weight_bytes,
        "dtype": info.rounded or str(info.layout.dtype),
        "shape": digest(repr(info)),
        "torch": torch.__version__,
        "forerun": version("forerun"),
        **more,
    }


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def recall(place: Path | None, about: Mapping[str, Any], measure: Callable[[], Costs], *, anew: bool = False) -> Costs:
    """What is kept in the folder `place`; else, or where it is wanted `anew`, what `measure` finds."""
    path = place / f"{digest(about)}.json" if place is not None else None
    kept = read(path, about) if path is not None and not anew else None
    if kept is not None:
        return kept
    found = measure()
    if path is not None and not found.alone:
        _LOG.info("costs were measured while other processes had the cores, so the next start measures them again.")
    elif path is not None:
        try:
            write_whole(path, text(found, about), "free space there, or choose another folder with --profiles")
        except ForerunError as problem:
            _LOG.warning("measured costs are not kept: %s", problem)
    return found


def text(costs: Costs, about: Mapping[str, Any]) -> bytes:
    """The file's content."""
    held = {name: getattr(costs, name) for name in Costs.__dataclass_fields__ if name != "alone"}
    content = {"format": FORMAT, "subject": dict(about), "costs": held}
    return json.dumps({**content, "checksum": digest(content)}, indent=1).encode()


def read(path: Path, about: Mapping[str, Any]) -> Costs | None:
    """The costs that a file holds, if it is whole, of this format and of this subject."""
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop("checksum")
        whole = checksum == digest(content)
        if not whole or content["format"] != FORMAT or content["subject"] != about:
            return None
        found = content["costs"]
        costs = Costs(tuple(found["rows"]), tuple(found["seconds"]), tuple(found["slopes"]), found["context"])
        return costs if _sound(costs) else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _sound(costs: Costs) -> bool:
    """Whether these can be anybody's costs."""
    ascending = len(costs.rows) > 1 and all(0 < a < b for a, b in pairwise(costs.rows))
    rising = all(0 < a <= b for a, b in pairwise(costs.seconds))
    finite = all(map(math.isfinite, (*costs.seconds, *costs.slopes, costs.context)))
    equal = len(costs.rows) == len(costs.seconds) == len(costs.slopes)
    return ascending and rising and finite and equal and min(costs.slopes) >= 0


def digest(value: Any) -> str:  # noqa: ANN401 - JSON
    """A short name for a value; not for secrets."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=12).hexdigest()
