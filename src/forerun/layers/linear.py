"""Linear maps, in the form that is fastest where they run.

On the CPU in float32, oneDNN's packed weights take 2 to 16 rows at about the price of one and give every row the same
bits whatever the other rows are; torch's own linear reads the weights in another order at 1 and at 2 or more rows.
Below `PACK_FROM` elements the packed call's fixed cost is more than it saves. Does not: quantize.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F

PACK_FROM = 200_000  # elements; measured: a packed call costs some 10 microseconds before it multiplies
ROWS = 8  # the batch that the packed layout is tuned for; it serves 1 to 64 rows equally well


class Linear(ABC):
    """x [rows, in] -> [rows, out]."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """W x + b."""

    @abstractmethod
    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """W x + b + residual."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of weight and bias."""


class DenseLinear(Linear):
    """Torch's own linear on a plain weight [out, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._transposed = weight.t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.addmm(residual, x, self._transposed)
        return F.linear(x, self.weight, self.bias).add_(residual)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)


class PackedLinear(Linear):
    """oneDNN's blocked weights; the residual is added inside the same call."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.bias, self._nbytes = bias, weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)  # noqa: SLF001
        self._plain = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001
        self._binary = torch.ops.mkldnn._linear_pointwise.binary  # noqa: SLF001

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._plain(x, self._packed, self.bias, "none", [], "")
        return out

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._binary(x, residual, self._packed, self.bias, "add")
        return out

    @property
    def nbytes(self) -> int:
        return self._nbytes


def packs(weight: torch.Tensor) -> bool:
    """Whether this weight is better packed."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.numel() < PACK_FROM:
        return False
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest form for this weight [out, in] on its device."""
    return PackedLinear(weight, bias) if packs(weight) else DenseLinear(weight, bias)
