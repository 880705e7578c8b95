"""`forerun bench inflate`: a model folder that costs what a big model costs, and writes what a small one writes.

Layers are added whose output and down projections are zero, and feed-forwards are widened by zeros, so that every
program that reads the folder runs the small model's function at the big one's cost. `--inflate` does the same within
one process. Does not: know shapes but Llama's; make sense for methods that skip layers, as `models/inflate.py` says.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from forerun.bench.checkpoints import once
from forerun.bench.speedup import inflation_note, parameters
from forerun.errors import ConfigError
from forerun.models.assemble import specs
from forerun.models.families.llama import adapt
from forerun.models.inflate import SILENT, layers_for, width_for
from forerun.models.load import companion_of, folder_of
from forerun.models.recipe import Settings
from forerun.weights.load import Checkpoint, read_json

COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_SCALE = 0.02  # standard deviation of the other added weights


@dataclass(frozen=True)
class Order:
    """What to write, and where."""

    size: str
    out: Path


def run(order: Order, model: str) -> dict[str, Any]:
    """Write the folder; what it holds."""
    if order.out.exists():
        raise ConfigError(f"{str(order.out)!r} exists; name a folder that does not, or remove it.")
    folder = folder_of(model)
    values = _enlarged(folder, parameters(order.size))
    weights = _weights(folder, values)

    def make(place: Path) -> None:
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        _write_json(place / "config.json", values)
        for name in COPIED:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, place / name)
        companion = companion_of(folder)
        if companion is not None:  # the small model's drafter is the big one's: they write the same
            _write_json(place / "forerun.json", {"drafter": os.path.relpath(companion, order.out.resolve())})

    once(order.out, make)
    held = sum(weight.numel() for weight in weights.values())
    return {"folder": str(order.out), "parameters": held, "notes": [inflation_note(order.size)]}


def pair(size: str, place: Path) -> Path:
    """The bundled model of that size in `place`/checkpoint, which is returned, and its drafter in `place`/draft."""
    source, target = folder_of("reference"), place / "checkpoint"
    drafter = companion_of(source)
    if drafter is None:
        raise ConfigError(f"{source} names no drafter; install forerun again.")
    if not target.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        run(Order(size, target), "reference")

    def copy(folder: Path) -> None:
        shutil.copytree(drafter, folder, dirs_exist_ok=True)

    once(place / "draft", copy)
    return target


def _enlarged(folder: Path, size: int) -> dict[str, Any]:
    """config.json of the big model."""
    values = read_json(folder / "config.json")
    if values.get("model_type") != "llama":
        raise ConfigError(f"{folder} is no Llama; write one of those out, or measure with --inflate.")
    recipe = adapt(Settings(values, folder / "config.json"))
    ends = sum(torch.Size(shape).numel() for name, shape in specs(recipe).items() if ".layers." not in name)
    layers = layers_for(recipe.config.num_layers, size)
    width = width_for(recipe.config, (size - ends) // layers)
    if width < recipe.config.ffn_size:
        raise ConfigError(f"{folder} has more than {size:,} parameters in {layers} layers; ask for a larger size.")
    return values | {"num_hidden_layers": layers, "intermediate_size": width}


def _weights(folder: Path, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The small model's in a corner of the big one's, zeros around them, and noise in the layers that it lacks."""
    checkpoint, generator = Checkpoint(folder), torch.Generator().manual_seed(0)
    found = {}
    for name, shape in specs(adapt(Settings(values, folder / "config.json"))).items():
        if name in checkpoint.entries:
            own = checkpoint.read(name)
            weight = torch.zeros(shape, dtype=own.dtype)
            weight[tuple(slice(size) for size in own.shape)] = own
        elif len(shape) == 1:
            weight = torch.ones(shape).bfloat16()
        elif name.endswith(SILENT):
            weight = torch.zeros(shape).bfloat16()
        else:
            weight = torch.randn(shape, generator=generator).mul_(_SCALE).bfloat16()
        found[name] = weight
    return found


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
