"""CUDA sources -> kernels that this process can launch, compiled for the GPU that is there by NVRTC.

NVRTC and the driver are reached through cuda-bindings, which PyTorch's CUDA builds bring along.
Does not: keep what it compiled beyond the process; know what a kernel does.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from forerun.errors import ForerunError

SOURCES = Path(__file__).parent / "cuda"
LEAST = (9, 0)  # compute capability: bulk copies, and barriers that count their bytes

Launch = Callable[[npt.NDArray[np.void]], None]


class GpuError(ForerunError):
    """The driver or the compiler refused."""


def why_not(device: torch.device) -> str:
    """Why kernels cannot be compiled for a device, in a sentence; empty where they can."""
    if device.type != "cuda":
        return "there is no GPU."
    if torch.cuda.get_device_capability(device) < LEAST:
        return f"the GPU is older than compute capability {LEAST[0]}.{LEAST[1]}."
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "cuda-bindings is missing; pip install cuda-bindings."
    return ""


def source(name: str) -> str:
    """A kernel's text, what it asks of the GPU first."""
    return (SOURCES / "device.cuh").read_text() + (SOURCES / name).read_text()


def launcher(name: str, entry: str, sizes: Mapping[str, int], shared: int, device: torch.device) -> Launch:
    """`entry` of a source, compiled with macros: one block of THREADS on each of BLOCKS multiprocessors.

    What it returns launches on the current stream, with the bytes of its one argument copied. GpuError where the
    compiler or the driver says no.
    """
    from cuda.bindings import driver

    function = _function(name, entry, tuple(sizes.items()), shared, device)
    context = _asked(driver.cuCtxGetCurrent())
    blocks, threads = sizes["BLOCKS"], sizes["THREADS"]
    known = threading.local()

    def launch(argument: npt.NDArray[np.void]) -> None:
        if not getattr(known, "ready", False):  # a thread that PyTorch has not used yet has no context
            _asked(driver.cuCtxSetCurrent(context))
            known.ready = True
        places = (ctypes.c_void_p * 1)(argument.ctypes.data)
        stream = torch.cuda.current_stream(device).cuda_stream
        size = (blocks, 1, 1, threads, 1, 1, shared)
        _asked(driver.cuLaunchCooperativeKernel(function, *size, stream, ctypes.addressof(places)))

    return launch


@cache
def _function(name: str, entry: str, sizes: tuple[tuple[str, int], ...], shared: int, device: torch.device) -> Any:  # noqa: ANN401 - the driver's handle
    from cuda.bindings import driver, nvrtc

    torch.zeros(1, device=device)  # PyTorch's context is the one to be in
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}a", "--std=c++17", *(f"-D{key}={value}" for key, value in sizes)]
    flags = [option.encode() for option in options]
    program = _asked(nvrtc.nvrtcCreateProgram(source(name).encode(), name.encode(), 0, [], []))
    (said,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if said != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(_asked(nvrtc.nvrtcGetProgramLogSize(program)))
        _asked(nvrtc.nvrtcGetProgramLog(program, log))
        raise GpuError(f"{name} does not compile for this GPU; use passes='padded'. {log.decode(errors='replace')}")
    binary = bytearray(_asked(nvrtc.nvrtcGetCUBINSize(program)))
    _asked(nvrtc.nvrtcGetCUBIN(program, binary))
    module = _asked(driver.cuModuleLoadData(bytes(binary)))
    function = _asked(driver.cuModuleGetFunction(module, entry.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _asked(driver.cuFuncSetAttribute(function, limit, shared))
    return function


def _asked(answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - whatever the driver gives
    """What a call gave, where it did not fail."""
    status, *found = answer
    if int(status) != 0:
        raise GpuError(f"the GPU's driver refused: {status.name}; use passes='padded'.")
    return found[0] if found else None
