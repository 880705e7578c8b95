"""What a number was measured on, when, and by which command."""

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from typing import Any

import torch

import forerun
from forerun.engine.profiles import cpu_name
from forerun.models.contract import ModelInfo
from forerun.models.native import widest


def facts(info: ModelInfo | None = None) -> dict[str, Any]:
    """The machine as a JSON object; with a model, its precision and device too."""
    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": max(torch.get_num_threads(), widest()),  # beside compiled passes torch has one
        "load_average": round(os.getloadavg()[0], 2),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "forerun": forerun.__version__,
    }
    if info is not None:
        device = info.layout.device
        found |= {"dtype": info.rounded or str(info.layout.dtype).removeprefix("torch."), "device": device.type}
        found |= gpu(device.type)
    return found


def gpu(device: str) -> dict[str, str]:
    """The name of the GPU, where it is one that is meant."""
    return {"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}


def circumstances() -> dict[str, str]:
    """Date and command line of this run."""
    command = shlex.join(["forerun", *sys.argv[1:]])
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "command": command}
