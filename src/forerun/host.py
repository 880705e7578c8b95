"""Between the host and a device.

`fetch` is the one door to the host: to pass it is to wait for everything that was asked of the device before.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def fetch(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's numbers; on the CPU the tensor's own memory."""
    found: np.ndarray[Any, Any] = tensor.cpu().numpy()
    return found


def send(numbers: npt.ArrayLike, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Numbers as a tensor on the device; the host does not wait for the copy."""
    tensor = torch.tensor(numbers, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
