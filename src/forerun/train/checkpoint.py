"""Save and load the state of a run in one safetensors file, replaced whole or not at all.

Does not: keep more than the last checkpoint; pickle anything.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from forerun.errors import TrainError

FILE = "checkpoint.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the file, then rename: a full disk or a kill leaves the old file as it was."""
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        remedy = "free space, then continue with --resume: what was saved before is intact"
        message = f"cannot write {str(path)!r} ({error.strerror}); {remedy}."
        raise TrainError(message) from error
    finally:
        temporary.unlink(missing_ok=True)


def save_run(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Weights, both AdamW moments and the counters of a run."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model.{name}"] = parameter.detach().contiguous()
        for moment in MOMENTS:
            if moment in optimizer.state.get(parameter, {}):
                tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    metadata = {"format": "pt", "state": json.dumps(state)}
    write_whole(folder / FILE, save(tensors, metadata))


def load_run(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a saved run back; returns its counters."""
    path = folder / FILE
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            state: dict[str, Any] = json.loads(file.metadata()["state"])
    except (OSError, SafetensorError) as error:
        message = f"cannot resume from {str(path)!r} ({error}); start again without --resume."
        raise TrainError(message) from error
    for name, parameter in model.named_parameters():
        restore(parameter, optimizer, tensors, name)
    return state


def restore(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], name: str
) -> None:
    saved = tensors.get(f"model.{name}")
    if saved is None or saved.shape != parameter.shape:
        got = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
        wanted = tuple(parameter.shape)
        message = f"checkpoint has {got} for {name!r}, the recipe wants {wanted}; use the recipe the run began with."
        raise TrainError(message)
    with torch.no_grad():
        parameter.copy_(saved)
    moments = {m: tensors[f"{m}.{name}"] for m in MOMENTS if f"{m}.{name}" in tensors}
    if moments:
        # AdamW keeps its step count on the CPU unless it is fused on a GPU.
        optimizer.state[parameter] = {m: t if m == "step" else t.to(parameter.device) for m, t in moments.items()}
