"""A name or folder -> a model.

Does not: download anything, run code from a folder (auto_map and trust_remote_code are not looked at), or read pickles.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from forerun.errors import ConfigError, ModelError, unknown
from forerun.kernels import native
from forerun.models.assemble import assemble, info_of
from forerun.models.contract import Model, ModelInfo
from forerun.models.families import FAMILIES
from forerun.models.native import assemble_native, supports
from forerun.models.packed import assemble_packed, dtype_of, open_packed
from forerun.models.parallel import Split, assemble_part
from forerun.models.recipe import Settings
from forerun.types import KVLayout
from forerun.weights.load import Checkpoint, read_json
from forerun.weights.packed import PackedFile

REFERENCE = Path(__file__).resolve().parent.parent / "reference"
NAMED = {"reference": REFERENCE / "target", "reference-drafter": REFERENCE / "drafter"}
PRECISIONS = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

KEPT = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}  # of keys and values
WHOLE = ("int8", "w8a8", "int4", "fastest")  # precisions that round weights to whole numbers on a CPU


def folder_of(name: str) -> Path:
    """The folder that a model's name stands for; ModelError where there is none."""
    folder = NAMED.get(name, Path(name).expanduser()).resolve()
    if not folder.is_dir():
        known = ", ".join([*NAMED, "toy:SEED"])
        raise ModelError(f"there is no model folder {name!r}; give a folder in Hugging Face form, or one of: {known}.")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json; give a folder in Hugging Face form.")
    return folder


def load_model(  # noqa: PLR0913 - all that a model may be asked to be
    path: str | Path,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int = 0,
    kv_dtype: str = "auto",
    *,
    compiled: bool = True,
    split: Split | None = None,
) -> Model:
    """The model in a folder, `reference`, `reference-drafter`, `toy:SEED` or `toy:SEED:VOCAB`.

    `auto` is float32 on the CPU, with weights kept as the checkpoint has them; on a GPU it is the checkpoint's own.
    `int8` and `int4` round weights to that and activations to 16 and 8 bits, `w8a8` both to 8; they need the compiled
    passes: ConfigError where they are not there. `fastest` is w8a8 where that runs, else auto. On a GPU `int8` and
    `int4` round the weights of the layers alone, by torchao. `compiled` False: run in PyTorch in any case.
    `split` is this process's part of a model that several share.
    `kv_dtype` is what keys and values are kept in: auto is bfloat16 with these and bfloat16, else the precision.
    """
    name, kept = str(path), _kept(str(path), device, kv_dtype)
    if name.startswith("toy:") and split is None:
        from forerun.models.toy import toy_by_name

        return toy_by_name(name)
    folder = folder_of(name)
    values = read_json(folder / "config.json")
    weights = open_packed(folder, values) or Checkpoint(folder)
    dtype = dtype_of(weights, dtype, device, name) if isinstance(weights, PackedFile) else dtype
    precision, place = _precision(dtype, device, values), torch.device(device)
    eos, companion = eos_of(folder, values), companion_of(folder)
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        from forerun.models.hf import load_other

        if split is not None:
            raise ConfigError(f"{name} runs through transformers, which no processes share; leave tensor_parallel out.")
        if dtype in WHOLE and dtype != "fastest":
            raise ConfigError(f"dtype {dtype!r} cannot run {name}, whose layers are transformers'; use dtype='auto'.")
        empty = ModelInfo(name, 0, 0, 0, 0, KVLayout((), (), precision, place, kept), eos, companion)
        return load_other(folder, precision, place, empty)
    recipe = FAMILIES[family](Settings(values, folder / "config.json"))
    info = info_of(recipe.config, name, precision, place)
    info = replace(info, eos=eos, companion=companion, layout=replace(info.layout, kept=kept))
    rounded = _rounded(dtype, precision)
    if rounded != "auto" and kept is None:
        info = replace(info, layout=replace(info.layout, dtype=torch.bfloat16))  # keys and values are rounded too
    if compiled and supports(recipe.config, info):
        if isinstance(weights, PackedFile):
            return assemble_packed(recipe.config, weights, info, threads, rounded)
        return assemble_native(recipe, weights, info, threads, rounded)
    info = replace(info, layout=replace(info.layout, dtype=precision))
    whole = rounded == dtype in WHOLE
    if isinstance(weights, PackedFile) or (whole and place.type == "cpu"):
        reason = native.describe() if compiled else "padded passes run in PyTorch"
        raise ConfigError(f"dtype {dtype!r} cannot run {name} here ({reason}); use dtype='auto'.")
    info = replace(info, rounded=dtype) if whole else info
    return assemble_part(recipe, weights, info, split) if split is not None else assemble(recipe, weights, info)


def _kept(name: str, device: str, kv_dtype: str) -> torch.dtype | None:
    """What keys and values are kept in where it is not their own precision; ConfigError where that cannot be."""
    if kv_dtype not in KEPT:
        raise ConfigError(unknown("load_model", "value of kv_dtype", kv_dtype, KEPT))
    if kv_dtype != "auto" and (torch.device(device).type != "cpu" or name.startswith("toy:")):
        what = "a toy model keeps tokens" if name.startswith("toy:") else f"device {device!r} keeps its own precision"
        raise ConfigError(f"kv_dtype {kv_dtype!r} cannot run {name}: {what} in its cache; use kv_dtype='auto'.")
    return KEPT[kv_dtype]


def _rounded(dtype: str, precision: torch.dtype) -> str:
    """What compiled passes round weights to; auto: nothing."""
    if dtype in WHOLE:
        return "w8a8" if dtype == "fastest" else dtype
    return "bfloat16" if precision == torch.bfloat16 else "auto"


def eos_of(folder: Path, values: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's, else config.json's."""
    generation = folder / "generation_config.json"
    sources = [read_json(generation), values] if generation.is_file() else [values]
    for source in (*sources, values.get("text_config")):
        found = source.get("eos_token_id") if isinstance(source, dict) else None
        ids = found if isinstance(found, list) else [found]
        if found is not None:
            if not all(isinstance(token, int) and token >= 0 for token in ids):
                raise ModelError(f"{folder}: eos_token_id is {found!r:.80}; it must be an id or a list of ids.")
            return tuple(ids)
    return ()


def companion_of(folder: Path) -> str | None:
    """The drafter that forerun.json names, as an absolute path."""
    file = folder / "forerun.json"
    found = read_json(file).get("drafter") if file.is_file() else None
    if found is not None and not isinstance(found, str):
        raise ModelError(f"{file}: 'drafter' is {found!r:.80}; it must be a folder, relative to this one.")
    return str((folder / found).resolve()) if found is not None else None


def _precision(dtype: str, device: str, values: dict[str, Any]) -> torch.dtype:
    if dtype in WHOLE and torch.device(device).type == "cpu":
        return torch.float32  # of everything that is not a matrix
    if dtype in ("int8", "int4"):
        return torch.bfloat16
    if dtype not in ("auto", "fastest"):
        if dtype not in PRECISIONS:
            known = ", ".join(sorted(PRECISIONS))
            raise ConfigError(f"dtype {dtype!r} is unknown; use auto, fastest, int8, int4, w8a8 (on a CPU), {known}.")
        return PRECISIONS[dtype]
    if torch.device(device).type == "cpu":
        return torch.float32
    own = values.get("dtype", values.get("torch_dtype"))
    return PRECISIONS.get(str(own), torch.float32)
