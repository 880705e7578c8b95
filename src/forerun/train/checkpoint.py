"""Save and load the state of a run in one safetensors file, replaced whole or not at all.

Does not: keep more than the last checkpoint; pickle anything.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from forerun.errors import TrainError
from forerun.files import write_whole

FILE = "checkpoint.safetensors"
# What an optimizer remembers of every parameter that it has moved.
MOMENTS = {"AdamW": ("exp_avg", "exp_avg_sq", "step"), "Muon": ("momentum_buffer",)}


def write(path: Path, content: bytes) -> None:
    """A file of a run, whole or not at all."""
    remedy = "free space, then continue with --resume: what was saved before is intact"
    write_whole(path, content, remedy, TrainError)


Optimizers = Sequence[torch.optim.Optimizer]


def owned(model: torch.nn.Module, optimizers: Optimizers) -> Iterator[tuple[str, torch.Tensor, torch.optim.Optimizer]]:
    """Every parameter with its name and the optimizer that moves it."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from ((names[parameter], parameter, optimizer) for parameter in group["params"])


def save_run(folder: Path, model: torch.nn.Module, optimizers: Optimizers, state: dict[str, Any]) -> None:
    """Weights, the optimizers' moments and the counters of a run."""
    tensors = {f"model.{name}": parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    for name, parameter, optimizer in owned(model, optimizers):
        tensors |= {f"{moment}.{name}": tensor for moment, tensor in optimizer.state.get(parameter, {}).items()}
    metadata = {"format": "pt", "state": json.dumps(state)}
    write(folder / FILE, save(tensors, metadata))


def load_run(folder: Path, model: torch.nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Put a saved run back; returns its counters."""
    path = folder / FILE
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
            state: dict[str, Any] = json.loads(file.metadata()["state"])
    except (OSError, SafetensorError) as error:
        message = f"cannot resume from {str(path)!r} ({error}); start again without --resume."
        raise TrainError(message) from error
    for name, parameter, optimizer in owned(model, optimizers):
        restore_weights(parameter, tensors, name)
        restore_moments(parameter, optimizer, tensors, name)
    return state


def restore_weights(parameter: torch.Tensor, tensors: dict[str, torch.Tensor], name: str) -> None:
    saved = tensors.get(f"model.{name}")
    if saved is None or saved.shape != parameter.shape:
        got = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
        wanted = tuple(parameter.shape)
        message = f"checkpoint has {got} for {name!r}, the recipe wants {wanted}; use the recipe the run began with."
        raise TrainError(message)
    with torch.no_grad():
        parameter.copy_(saved)


def restore_moments(
    parameter: torch.Tensor, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], name: str
) -> None:
    kind = type(optimizer).__name__
    known = {moment for moments in MOMENTS.values() for moment in moments}
    moments = {m: tensors[f"{m}.{name}"] for m in known if f"{m}.{name}" in tensors}
    if not moments:  # saved before the first step
        return
    if moments.keys() != set(MOMENTS[kind]):
        remedy = "use the recipe the run began with"
        message = f"checkpoint has {', '.join(sorted(moments))} for {name!r}, which {kind} does not know; {remedy}."
        raise TrainError(message)
    # AdamW keeps its step count on the CPU unless it is fused on a GPU.
    optimizer.state[parameter] = {m: t if m == "step" else t.to(parameter.device) for m, t in moments.items()}
