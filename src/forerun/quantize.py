"""A model folder -> a folder of packed weights that loads at the speed of reading.

One layer is in memory at a time. The new folder has its name only once it is whole.
Does not: change the old folder; overwrite one that exists.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import track

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError, ModelError
from forerun.kernels import native
from forerun.models.assemble import Reader, assemble, info_of
from forerun.models.calibrate import Calibration, windows
from forerun.models.contract import Model
from forerun.models.families import FAMILIES
from forerun.models.load import companion_of, folder_of
from forerun.models.native import LEAST_SQUARES, NEAREST, Packer, Rounding, supports
from forerun.models.packed import DTYPES, digest, write_parts
from forerun.models.recipe import Recipe, Settings
from forerun.types import Work
from forerun.weights.load import INDEX, Checkpoint, read_json, trim
from forerun.weights.packed import NAME, Writer

SCALES = {"nearest": NEAREST, "mse": LEAST_SQUARES}
COPIED = {".json", ".txt", ".jinja", ".model"}  # config, tokenizer, chat template, generation settings


@dataclass(frozen=True)
class Job:
    """What is to be made."""

    dtype: str = "int8"
    scales: str | None = None  # None: by least squares, which bf16 does without
    calibrate: Sequence[Path] = ()  # texts


def quantize(model: str, out: Path, job: Job) -> dict[str, Any]:
    """Write the folder `out`; returns what it holds."""
    job = _checked(job)
    folder = folder_of(model)
    if (folder / NAME).is_file():
        raise ConfigError(f"{folder} is packed already; quantize the model that it was made of.")
    if out.exists():
        raise ConfigError(f"{str(out)!r} exists; name a folder that does not, or remove it.")
    values = read_json(folder / "config.json")
    recipe = recipe_of(folder, values)
    temporary = out.with_name(f"{out.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(parents=True)
        nbytes = _write(temporary / NAME, folder, recipe, values, job)
        _copy(folder, temporary, out)
        temporary.rename(out)
    except OSError as problem:
        raise ModelError(f"cannot write {str(out)!r} ({problem.strerror}); make room, or name another.") from problem
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"folder": str(out), "dtype": job.dtype, "scales": job.scales, "bytes": nbytes}


def _checked(job: Job) -> Job:
    """The job with its scales; ConfigError for what cannot be made."""
    if job.dtype == "bf16" and (job.scales or job.calibrate):
        raise ConfigError("bf16 has no scales to choose; leave --scales and --calibrate out, or use int8 or int4.")
    if job.dtype != "bf16":
        job = replace(job, scales=job.scales or "mse")
    for what, got, known in (("dtype", job.dtype, DTYPES), ("scales", job.scales, (*SCALES, None))):
        if got not in known:
            raise ConfigError(f"--{what} is {got!r}; use one of: {', '.join(filter(None, known))}.")
    return job


def recipe_of(folder: Path, values: dict[str, Any]) -> Recipe:
    """The recipe of a model that the compiled passes run; ConfigError for others."""
    family, recipe = values.get("model_type"), None
    if isinstance(family, str) and family in FAMILIES:
        recipe = cast("Recipe", FAMILIES[family](Settings(values, folder / "config.json")))
    place = torch.device("cpu")
    if recipe is None or not supports(recipe.config, info_of(recipe.config, str(folder), torch.bfloat16, place)):
        raise ConfigError(
            f"{folder} cannot be packed: {family!r:.40} has no compiled passes here ({native.describe()})."
        )
    return recipe


def _write(path: Path, folder: Path, recipe: Recipe, values: dict[str, Any], job: Job) -> int:
    module: Any = native.load()
    reader = Reader(Checkpoint(folder), recipe, torch.float32, torch.device("cpu"))
    improve = _calibration(folder, recipe, job.calibrate).improve if job.calibrate else None
    packer = Packer(recipe, reader, Rounding(DTYPES[job.dtype], SCALES[job.scales or "nearest"], improve))
    facts = {"dtype": job.dtype, "layout": module.LAYOUT, "family": values["model_type"], "config": digest(values)}
    facts |= {"scales": job.scales, "calibrated": bool(job.calibrate)}
    with path.open("wb") as file:
        writer = Writer(file)
        layers = write_parts(writer, recipe.config, packer)
        bar = Console(stderr=True)
        for _ in track(layers, "packing", recipe.config.num_layers, console=bar, transient=True):
            packer.arena = module.Arena()
            trim()
        return writer.finish(facts)


def _calibration(folder: Path, recipe: Recipe, texts: Sequence[Path]) -> Calibration:
    """The exact model, and the texts that it will read."""
    read = list(windows(folder, texts, recipe.config.context_length))
    info = info_of(recipe.config, str(folder), torch.float32, torch.device("cpu"))
    return Calibration(recipe, assemble(recipe, Checkpoint(folder), info), read, one_pass)


def one_pass(model: Model, tokens: Sequence[int], rows: int) -> torch.Tensor:
    """Read a text from its start; logits after the last `rows` tokens."""
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, len(tokens))
    slot, _ = cache.open(())
    cache.reserve(slot, len(tokens))
    wanted = tuple(range(len(tokens) - rows, len(tokens)))
    return ModelRunner(model, cache).run([Work(slot, tuple(tokens), logits=wanted)])[0].logits


def _copy(folder: Path, to: Path, final: Path) -> None:
    """Everything of the folder but weights; a drafter is named by its way from the new folder."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in COPIED and file.name != INDEX:
            shutil.copyfile(file, to / file.name)
    companion = companion_of(folder)
    if companion is not None:
        settings = read_json(folder / "forerun.json")
        settings["drafter"] = os.path.relpath(companion, final.resolve())
        (to / "forerun.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
