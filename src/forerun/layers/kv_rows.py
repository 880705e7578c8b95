"""Keys and values of all layers as numbered rows; a cache decides which row holds which token.

One tensor per head width holds all its layers, so that moving rows is one operation, not two per layer.
Does not: know slots or tokens; grow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from forerun.host import send
from forerun.types import KVLayout

LONG = 16  # rows; from this mean length on, runs copied as slices beat rows addressed one by one (on a CPU)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one pass go: each by its index, or in runs (row of the pass, first row here, count)."""

    index: torch.Tensor | None
    runs: tuple[tuple[int, int, int], ...] = ()


class KVRows:
    """Keys and values [heads, rows + 1, dim] per layer; the last row is for what nobody reads."""

    def __init__(self, layout: KVLayout, rows: int) -> None:
        self._device, self.scratch = layout.device, rows
        self._stores: list[torch.Tensor] = []  # [heads of keys and values of all layers of one width, rows, dim]
        self.keys = [torch.empty(0)] * len(layout.dims)
        self.values = list(self.keys)
        for dim in dict.fromkeys(layout.dims):
            layers = [i for i, d in enumerate(layout.dims) if d == dim]
            heads = [layout.heads[i] for i in layers]
            store = torch.zeros(2 * sum(heads), rows + 1, dim, dtype=layout.dtype, device=layout.device)
            parts = iter(store.split([h for count in heads for h in (count, count)]))
            for layer in layers:
                self.keys[layer], self.values[layer] = next(parts), next(parts)
            self._stores.append(store)

    def place(self, rows: Sequence[int]) -> Place:
        """Prepare a write of a pass whose row i goes to `rows[i]`; once per pass, not per layer."""
        if len(rows) > LONG:
            runs = tuple(_runs(rows))
            if len(rows) > LONG * len(runs):
                return Place(None, runs)
        return Place(send(rows, self._device))

    def write(self, layer: int, place: Place, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [rows, heads, dim] of a pass."""
        for mine, new in ((self.keys[layer], keys), (self.values[layer], values)):
            flat = new.transpose(0, 1)
            if place.index is not None:
                mine.index_copy_(1, place.index, flat)
            for start, first, count in place.runs:
                mine[:, first : first + count] = flat[:, start : start + count]

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Copy rows in all layers, as if all were read before any is written."""
        both = send((source, to), self._device)
        for store in self._stores:
            store.index_copy_(1, both[1], store.index_select(1, both[0]))

    def poison(self, first: int, count: int) -> None:
        """Fill rows with NaN, so that whoever reads them shows."""
        for store in self._stores:
            store.narrow(1, first, count).fill_(torch.nan)


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Maximal runs of consecutive rows."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield start, rows[start], i - start
            start = i
