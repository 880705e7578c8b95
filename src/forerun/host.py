"""Between the host and a device.

`fetch` and `wait` are the doors to the host: to pass one is to wait for everything that was asked of the device before.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def fetch(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's numbers; on the CPU the tensor's own memory."""
    found: np.ndarray[Any, Any] = tensor.cpu().numpy()
    return found


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it; what it wrote into the host's memory is then there."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def send(numbers: npt.ArrayLike, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Numbers as a tensor on the device; the host does not wait for the copy."""
    tensor = torch.tensor(numbers, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
