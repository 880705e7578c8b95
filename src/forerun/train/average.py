"""Average the weights of model folders that grew from one another.

Does not: check that they did; of strangers the average is noise. See Wortsman et al. 2022, "Model soups", arXiv
2203.05482.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from forerun.errors import TrainError
from forerun.train.checkpoint import write
from forerun.train.export import swap

WEIGHTS = "model.safetensors"


def average(shares: Mapping[Path, float], out: Path) -> None:
    """Write `out`: the first folder, with the weighted mean of all; shares are made to add up to one."""
    total = sum(shares.values())
    if not shares or min(shares.values()) < 0 or total <= 0:
        raise TrainError("an average needs folders with shares above zero; write FOLDER=SHARE, for example runs/a=0.5.")
    mean: dict[str, torch.Tensor] = {}
    for folder, share in shares.items():
        weights = weights_of(folder)
        if mean and {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in mean.items()}:
            raise TrainError(f"{folder} is of another shape than {next(iter(shares))}; average models of one recipe.")
        for name, weight in weights.items():
            mean[name] = mean.get(name, 0) + weight.float() * (share / total)
    staging = out.with_name(out.name + ".part")
    try:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(next(iter(shares)), staging)
        rounded = {name: weight.to(torch.bfloat16).contiguous() for name, weight in mean.items()}
        write(staging / WEIGHTS, save(rounded, {"format": "pt"}))
        swap(staging, out)
    except OSError as error:
        message = f"cannot write {str(out)!r} ({error.strerror}); free space or name another folder."
        raise TrainError(message) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise TrainError(f"{folder} has no sound {WEIGHTS} ({error}); name a folder that training wrote.") from error
