"""Keys and values of all layers as numbered rows; a cache decides which row holds which token.

One tensor per head width holds all its layers, so that moving rows is one operation, not two per layer. In int8 there
is another for the scales. Does not: know slots or tokens; grow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forerun.host import fetch, send
from forerun.types import KVLayout

FEW = 4  # rows; so many are moved one by one, each in an eighth of what numpy takes to address a list of them
LONG = 16  # rows; from this mean length on, runs copied as slices beat rows addressed one by one (on a CPU)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one pass go: each by its index, or in runs (row of the pass, first row here, count)."""

    index: torch.Tensor | None
    runs: tuple[tuple[int, int, int], ...] = ()


class KVRows:
    """Keys and values [heads, rows + 1, dim] per layer, and what int8 ones are multiplied with [heads, rows + 1, 1].

    The last row is for what nobody reads.
    """

    def __init__(self, layout: KVLayout, rows: int) -> None:
        self._device, self._dtype, self.scratch = layout.device, layout.dtype, rows
        self.noted: list[tuple[list[int], list[int]]] | None = None
        self._whole = not layout.stored.is_floating_point
        self._stores: list[torch.Tensor] = []  # [heads of keys and values of all layers of one width, rows, dim]
        self.keys = [torch.empty(0)] * len(layout.dims)
        self.values, self.key_scales, self.value_scales = (list(self.keys) for _ in range(3))
        for dim in dict.fromkeys(layout.dims):
            layers = [i for i, d in enumerate(layout.dims) if d == dim]
            heads = [layout.heads[i] for i in layers]
            stores = [torch.zeros(2 * sum(heads), rows + 1, dim, dtype=layout.stored, device=layout.device)]
            if self._whole:
                stores.append(torch.zeros(2 * sum(heads), rows + 1, 1, dtype=torch.float32, device=layout.device))
            both = ((self.keys, self.values), (self.key_scales, self.value_scales))
            for store, (keys, values) in zip(stores, both, strict=False):
                parts = iter(store.split([h for count in heads for h in (count, count)]))
                for layer in layers:
                    keys[layer], values[layer] = next(parts), next(parts)
            self._stores += stores
        near = self._device.type == "cpu"  # moves are of few rows: PyTorch's operations take longer than the copies
        self._near = [s.view(torch.uint8).numpy() for s in self._stores] if near else []

    def place(self, rows: Sequence[int]) -> Place:
        """Prepare a write of a pass whose row i goes to `rows[i]`; once per pass, not per layer."""
        if len(rows) > LONG:
            runs = tuple(_runs(rows))
            if len(rows) > LONG * len(runs):
                return Place(None, runs)
        return Place(send(rows, self._device))

    def write(self, layer: int, place: Place, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [rows, heads, dim] of a pass."""
        mine = ((self.keys, self.key_scales, keys), (self.values, self.value_scales, values))
        for strips, scales, new in mine:
            flat = new.transpose(0, 1)
            if self._whole:
                flat, scale = encode(flat)
                _put(scales[layer], place, scale)
            _put(strips[layer], place, flat.to(strips[layer].dtype))

    def read(self, layer: int, pick: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values [heads, n, dim] in the rows that `pick` takes of a strip [heads, rows, any width]."""
        keys, values = pick(self.keys[layer]), pick(self.values[layer])
        if self._whole:
            keys, values = keys * pick(self.key_scales[layer]), values * pick(self.value_scales[layer])
        return keys.to(self._dtype), values.to(self._dtype)

    def copy(self, source: int, to: int, count: int) -> None:
        """Copy rows that lie side by side to others, in all layers."""
        for store in self._stores:
            store.narrow(1, to, count).copy_(store.narrow(1, source, count))
        if self.noted is not None:
            self.noted.append((list(range(source, source + count)), list(range(to, to + count))))

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Copy rows in all layers, as if all were read before any is written."""
        if len(source) <= FEW and not any(row in source[i:] for i, row in enumerate(to, 1)):
            for near in self._near:
                for one, place in zip(source, to, strict=True):
                    near[:, place] = near[:, one]
        else:
            for near in self._near:
                near[:, to] = near[:, source]
        if not self._near:
            both = send((source, to), self._device)
            for store in self._stores:
                store.index_copy_(1, both[1], store.index_select(1, both[0]))
        if self.noted is not None:
            self.noted.append((list(source), list(to)))

    def finite(self, first: int, count: int) -> bool:
        """Whether all that rows hold, or their scales, are numbers. It waits for the device."""
        floats = [store.narrow(1, first, count) for store in self._stores if store.is_floating_point()]
        return all(np.isfinite(fetch(part.sum(dtype=torch.float64))) for part in floats)

    def poison(self, first: int, count: int) -> None:
        """Fill rows with NaN, or scales of them, so that whoever reads them shows."""
        for store in self._stores:
            if store.is_floating_point():
                store.narrow(1, first, count).fill_(torch.nan)


def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [..., dim] -> whole ones in int8 and a float32 scale [..., 1] for which their product is nearest."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / 127
    whole = torch.where(scale > 0, x / scale, 0).round_().clamp_(-127, 127)
    return whole.to(torch.int8), scale


def _put(strip: torch.Tensor, place: Place, flat: torch.Tensor) -> None:
    if place.index is not None:
        strip.index_copy_(1, place.index, flat)
    for start, first, count in place.runs:
        strip[:, first : first + count] = flat[:, start : start + count]


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Maximal runs of consecutive rows."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield start, rows[start], i - start
            start = i
