"""RMS norm (1910.07467) and layer norm (1607.06450).

Does not: learn; gains are given, and "1 + w" gains are given as such.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F


class Norm(ABC):
    """x [..., dim] -> the same shape."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""


class RmsNorm(Norm):
    """x g / sqrt(mean(x^2) + eps), in float32 or better."""

    def __init__(self, gain: torch.Tensor, eps: float) -> None:
        dim = gain.shape[-1]
        self.eps, self.dtype, self.gain = eps, gain.dtype, gain
        wide = gain if gain.dtype == torch.float64 else gain.float()
        # |x| / sqrt(dim) = sqrt(mean(x^2)), so x g / sqrt(mean + eps) = x (g sqrt(dim)) / hypot(|x|, sqrt(dim eps)):
        # four calls instead of the six that torch's own makes on the CPU
        self._gain = wide * dim**0.5
        self._floor = torch.tensor((dim * eps) ** 0.5, dtype=wide.dtype, device=gain.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.fused(x) if x.is_cuda else self.plain(x)

    def fused(self, x: torch.Tensor) -> torch.Tensor:
        """One kernel, on a GPU; a gain [heads, dim] norms every head by its own."""
        one = self.gain.dim() == 1
        out = F.rms_norm(x, x.shape[-1:], self.gain if one else None, self.eps)
        return out if one else out * self.gain

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype == self._gain.dtype else x.to(self._gain.dtype)
        size = torch.hypot(torch.linalg.vector_norm(wide, 2, -1, True), self._floor)  # noqa: FBT003
        out = torch.mul(wide, self._gain).div_(size)
        return out if out.dtype == self.dtype else out.to(self.dtype)


class LayerNorm(Norm):
    """(x - mean) g / sqrt(var + eps) + b; a gain [heads, dim] norms every head by its own."""

    def __init__(self, gain: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        self.gain, self.bias, self.eps = gain, bias, eps
        self.shape = gain.shape[-1:]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.gain.dim() == 1:
            return F.layer_norm(x, self.shape, self.gain, self.bias, self.eps)
        return F.layer_norm(x, self.shape, None, None, self.eps) * self.gain
