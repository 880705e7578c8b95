"""Find the compiled kernels, and say which path runs.

Does not: compile anything. Where no compiler was found at install, forerun runs in PyTorch.
"""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

NAME = "forerun.kernels._native"
UNITS = {"avx512": " (vnni, bf16)", "amx": " (int8)"}  # what an instruction set has beyond its name
REMEDY = "install a C++ compiler (g++ 12 or clang 14) and reinstall forerun for the fast path"


@cache
def find() -> ModuleType | str:
    """The extension, or why there is none."""
    try:
        return import_module(NAME)
    except ModuleNotFoundError as missing:
        return "were not built" if missing.name == NAME else f"could not be loaded ({missing})"
    except ImportError as broken:
        return f"could not be loaded ({broken})"


def load() -> ModuleType | None:
    """The extension, or None where it was not built or cannot be loaded."""
    found = find()
    return None if isinstance(found, str) else found


def load_for(logits: torch.Tensor) -> Any:  # noqa: ANN401 - the extension has no static type
    """The extension, where it is there and can read such rows; else None, and the caller has a plain form."""
    return load() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None


def describe() -> str:
    """One line: which path runs, and what to do for the fast one."""
    found = find()
    if isinstance(found, str):
        return f"native kernels {found}, so passes run in PyTorch; {REMEDY}."
    isa = found.isa()
    return f"native kernels: {isa}{UNITS.get(isa, '')}"


def bandwidth(buffer: npt.NDArray[np.float64], threads: int) -> float:
    """Bytes per second at which `threads` together read a buffer once. Needs the extension."""
    module = load()
    assert module is not None, describe()  # noqa: S101 - callers ask load() first
    seconds: float = module.read(module.Team(threads), buffer.ctypes.data, buffer.nbytes)
    return buffer.nbytes / seconds
