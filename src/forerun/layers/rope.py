"""Rotary positions (2104.09864) and their stretched forms: linear, llama3, yarn (2309.00071), longrope (2402.13753).

A pair of dimensions is one complex number here, so a rotation is one multiplication; `interleave` reorders weights
that keep the two halves of a head apart. Does not: change with the length of the sequence. Where longrope goes from
short to long factors, a key's rotation depends on its own position alone, so a cached pass equals a full one.
"""

import math
from dataclasses import dataclass

import torch

WIDE = (torch.float32, torch.float64)  # precisions that torch has complex numbers of


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotation: `frequencies` per pair of dimensions, in radians per position."""

    frequencies: tuple[float, ...]
    scale: float = 1.0  # multiplies queries and keys (yarn, longrope)
    beyond: tuple[float, ...] | None = None  # longrope's frequencies from position `border` on
    border: int = 0

    @property
    def dim(self) -> int:
        """How many dimensions of a head turn; the rest pass unchanged."""
        return 2 * len(self.frequencies)


class Rotation:
    """A Rope made ready for one device and precision."""

    def __init__(self, rope: Rope, dtype: torch.dtype, device: torch.device) -> None:
        self.rope, self.pairs = rope, len(rope.frequencies)
        self.real = torch.float64 if dtype == torch.float64 else torch.float32
        self._frequencies = torch.tensor(rope.frequencies, dtype=self.real, device=device)
        self._beyond = torch.tensor(rope.beyond, dtype=self.real, device=device) if rope.beyond else None
        self._length = torch.full((), rope.scale, dtype=self.real, device=device)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """The complex factors of `positions` [rows] -> [rows, 1, pairs]."""
        frequencies = self._frequencies
        if self._beyond is not None:
            frequencies = torch.where(positions[:, None] < self.rope.border, frequencies, self._beyond)
        return torch.polar(self._length, positions[:, None] * frequencies).unsqueeze(1)


def rotate(x: torch.Tensor, factors: torch.Tensor) -> None:
    """Turn x [rows, heads, dim] in place; dimensions beyond the factors' pairs stay."""
    rows, heads, dim = x.shape
    if 2 * factors.shape[-1] < dim:
        x, dim = x[..., : 2 * factors.shape[-1]], 2 * factors.shape[-1]
    pairs = x.view(rows, heads, dim // 2, 2)
    if x.dtype in WIDE:
        torch.view_as_complex(pairs).mul_(factors)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(factors)))


def interleave(rows: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """Reorder [heads * size, ...] so that the pair (i, i + dim/2) of every head becomes (2i, 2i + 1)."""
    size = rows.shape[0] // heads
    order = [*torch.arange(dim).view(2, -1).t().flatten().tolist(), *range(dim, size)]
    return rows.view(heads, size, *rows.shape[1:])[:, order].flatten(0, 1)


def frequencies(dim: int, theta: float) -> torch.Tensor:
    """theta^(-2i/dim), in float32 as every implementation has them."""
    powers: torch.Tensor = theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    return powers.reciprocal()


def default(dim: int, theta: float) -> Rope:
    return Rope(tuple(frequencies(dim, theta).tolist()))


def linear(dim: int, theta: float, factor: float) -> Rope:
    """Positions divided by `factor`."""
    return Rope(tuple((frequencies(dim, theta) / factor).tolist()))


@dataclass(frozen=True, slots=True)
class Llama3:
    """Slow waves are stretched, fast ones kept, those between blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int

    def rope(self, dim: int, theta: float) -> Rope:
        turn = frequencies(dim, theta)
        waves = self.original / (2 * math.pi / turn)
        blend = (waves - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = blend.clamp(0, 1)
        return Rope(tuple(((1 - blend) * turn / self.factor + blend * turn).tolist()))


@dataclass(frozen=True, slots=True)
class Yarn:
    """Dimensions that turn often are kept, those that turn seldom stretched, with a ramp between (2309.00071)."""

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True

    def rope(self, dim: int, theta: float) -> Rope:
        turn = frequencies(dim, theta)
        low, high = self._border(dim, theta, self.beta_fast), self._border(dim, theta, self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high += 0.001 if low == high else 0
        ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        return Rope(tuple((turn / self.factor * ramp + turn * (1 - ramp)).tolist()), self._scale())

    def _border(self, dim: int, theta: float, turns: float) -> float:
        """The dimension that makes `turns` rotations over the original context."""
        return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    def _scale(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)
        return self._magnitude(1.0)

    def _magnitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class LongRope:
    """One factor per pair: `short` up to the original context, `long` beyond (2402.13753)."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    factor: float
    original: int
    attention_factor: float | None = None

    def rope(self, dim: int, theta: float) -> Rope:
        turn = frequencies(dim, theta)
        short, long = (turn / torch.tensor(factors) for factors in (self.short, self.long))
        scale = self.attention_factor
        if scale is None:
            grown = math.log(self.factor) / math.log(self.original) if self.factor > 1 else 0.0
            scale = math.sqrt(1 + grown)
        return Rope(tuple(short.tolist()), scale, tuple(long.tolist()), self.original)
