"""Linear maps in float32, in the form that is fastest where they run.

On the CPU, weights that float16 holds exactly (every float16 checkpoint's, and a bfloat16 one's after scaling by a
power of two) are kept so and widened inside the multiplication: half the memory traffic, the same products. Others are
packed by oneDNN. Both give a row the same bits whatever the other rows are (oneDNN not for one row of several thousand
inputs), and several rows at little more than the price of one, which torch's own linear does not. Small matrices stay
plain: the packed calls cost some ten microseconds before they multiply. Does not: round a weight.
"""

import math
from abc import ABC, abstractmethod
from functools import cache

import torch
import torch.nn.functional as F

HALF_FROM = 100_000  # elements
PACK_FROM = 200_000
ROWS = 8  # the batch that oneDNN's layout is tuned for; it serves 1 to 64 rows equally well
HALF_MAX = 32768.0  # the largest power of two in float16
FBGEMM_ROWS = 4  # as many as it takes together on every processor
PROBE = 4096  # elements that are looked at before all are


class Linear(ABC):
    """x [rows, in] -> [rows, out]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.bias, self.numel, self.nbytes = bias, weight.numel(), weight.nbytes

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """W x + b."""

    @abstractmethod
    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """W x + b + residual."""


class DenseLinear(Linear):
    """Torch's own linear on a plain weight [out, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self.weight, self._transposed = weight, weight.t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.addmm(residual, x, self._transposed)
        return F.linear(x, self.weight, self.bias).add_(residual)


class PackedLinear(Linear):
    """oneDNN's blocked float32 weights; the residual is added inside the same call."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)  # noqa: SLF001 - its only door
        self._plain = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001
        self._binary = torch.ops.mkldnn._linear_pointwise.binary  # noqa: SLF001

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._plain(x, self._packed, self.bias, "none", [], "")
        return out

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._binary(x, residual, self._packed, self.bias, "add")
        return out


class HalfLinear(Linear):
    """Float16 weights and float32 everything else (FBGEMM); `scale` undoes the power of two in the weights."""

    def __init__(self, half: torch.Tensor, scale: float, bias: torch.Tensor | None) -> None:
        super().__init__(half, bias)
        self.scale = scale
        self._packed = torch.ops.quantized.linear_prepack_fp16(half.float(), None)
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self._product(x)
        if self.scale != 1:
            out.mul_(self.scale)
        return out if self.bias is None else out.add_(self.bias)

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out = torch.add(residual, self._product(x), alpha=self.scale)
        return out if self.bias is None else out.add_(self.bias)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        more = settled(rows) - rows
        out: torch.Tensor = self._multiply(F.pad(x, (0, 0, 0, more)) if more else x, self._packed)
        return out[:rows] if more else out


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest form for this weight [out, in] on its device."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        halved = as_half(weight) if weight.numel() >= HALF_FROM and has_half() else None
        if halved is not None:
            return HalfLinear(*halved, bias)
        if weight.numel() >= PACK_FROM and has_packed():
            return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def linear_of_half(half: torch.Tensor) -> Linear:
    """The fastest float32 map by weights that are float16 numbers."""
    if half.device.type == "cpu" and half.numel() >= HALF_FROM and has_half():
        return HalfLinear(half, 1.0, None)
    return linear(half.float())


def as_half(weight: torch.Tensor) -> tuple[torch.Tensor, float] | None:
    """Float16 numbers and the power of two that makes exactly this weight of them; None where float16 is too narrow."""
    low, high = (end.item() for end in torch.aminmax(weight))
    largest = max(-low, high)
    if not math.isfinite(largest):
        return None
    # the second brings the largest element near the top of float16's range, so that small ones keep their bits
    factors = (1.0, 2.0 ** math.floor(math.log2(HALF_MAX / largest))) if largest else (1.0,)
    for factor in factors:
        if _halved(weight.flatten()[:PROBE], factor) is not None:
            half = _halved(weight, factor)
            if half is not None:
                return half, 1 / factor
    return None


def _halved(weight: torch.Tensor, factor: float) -> torch.Tensor | None:
    """weight * factor in float16 if not a bit is lost."""
    scaled = weight * factor if factor != 1 else weight
    half = scaled.half()
    return half if torch.equal(half.float(), scaled) else None


@cache
def settled(rows: int) -> int:
    """As many rows or a few more, each of which FBGEMM gives the bits that it has among others.

    On a processor with AVX2 it sums in another order where one or two rows are left over from blocks of up to six.
    Tried on random numbers, once for every count; the count itself where none of the next ones is better.
    """
    source = torch.Generator().manual_seed(0)
    x = torch.randn(rows + 2 * FBGEMM_ROWS, 64, generator=source)
    packed = torch.ops.quantized.linear_prepack_fp16(torch.randn(64, 64, generator=source).half().float(), None)
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    blocks = torch.cat([multiply(block, packed) for block in x.split(FBGEMM_ROWS)])
    for count in range(rows, rows + FBGEMM_ROWS):
        if torch.equal(multiply(x[:count], packed), blocks[:count]):
            return count
    return rows


def has_half() -> bool:
    """Whether this build of torch multiplies by float16 weights."""
    return torch.backends.quantized.engine in {"x86", "fbgemm"}


def has_packed() -> bool:
    """Whether this build of torch has oneDNN's packed linear."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
