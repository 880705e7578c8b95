"""A flat pass -> one of few fixed shapes, so that a device can run it as a graph that it has captured.

Rows and entries are padded up to the next size; what pads is written to a scratch row and never read. All inputs of a
pass are parts of one buffer, so that they reach the device in one copy.
Does not: touch a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch

from forerun.caches.contract import Cache
from forerun.engine.batch import branches
from forerun.growth import leaves
from forerun.types import Flat, Grid, Ints, Pass, Segment

WIDE = 64  # rows; from here on sizes are multiples of it, below they are powers of two
LEAST_CONTEXT = 256  # entries
LEAST_COLUMNS = 16  # unsettled entries


@dataclass(frozen=True)
class Shaping:
    """How passes are padded.

    `invariant`: every pass of up to 64 rows has one width, every chain holds the whole context, and a tree is one
    chain per leaf, so that a row is computed in the same order of sums whatever else is in the pass.
    """

    context: int  # entries that a slot can hold
    invariant: bool = False
    kernel: str = "sdpa"  # which attention is used; see layers/padded.py
    resident: bool = False  # passes of few rows run as one launch, where the model and the GPU can


class Shape(NamedTuple):
    """Sizes of a pass's inputs."""

    rows: int
    wanted: int  # rows whose logits are computed
    chains: int
    width: int  # rows of a chain
    context: int  # entries of a chain
    columns: int  # unsettled entries; 0 where no request has a tree


class Chain(NamedTuple):
    """Rows that share their entries."""

    rows: Ints  # of the pass
    entries: Ints  # rows of the cache, in order
    tree: Ints | None  # [rows, columns] for the last `columns` entries; None: seen by position


def above(count: int) -> int:
    """The next power of two up to 64, then the next multiple of 64; 0 for 0."""
    return -(-count // WIDE) * WIDE if count > WIDE else doubled(count)


def doubled(count: int) -> int:
    """The next power of two; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0


def chains(flat: Flat, cache: Cache, *, split: bool) -> list[Chain]:
    """One chain per request, or per leaf of a request's tree where trees are to be split."""
    found: list[Chain] = []
    for s, parents in zip(flat.segments, flat.trees, strict=True):
        rows, entries = np.arange(s.start, s.start + s.rows), _entries(s, cache)
        if parents is None:
            found.append(Chain(rows, entries, None))
            continue
        if split:
            for fresh, path in leaves(parents, s.base):
                seen = np.append(entries[: s.past], entries[s.past + np.array(path)])
                found.append(Chain(np.array(fresh) - s.base + s.start, seen, None))
        else:
            found.append(Chain(rows, entries, branches(parents, s.base)[0]))
    return found


def _entries(segment: Segment, cache: Cache) -> Ints:
    """The rows of the cache that hold a segment's entries, its own included."""
    runs = cache.runs(segment)
    if len(runs) == 1:
        return np.arange(runs[0][0], runs[0][0] + runs[0][1])
    firsts, counts = np.array(runs, dtype=np.int64).T
    rows: Ints = np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
    return rows


def shape_of(flat: Flat, found: Sequence[Chain], shaping: Shaping) -> Shape:
    """The smallest shape that holds a pass."""
    rows, wanted, whole = above(len(flat.tokens)), above(len(flat.wanted)), above(shaping.context)
    width, most = above(max(len(c.rows) for c in found)), max(len(c.entries) for c in found)
    context = min(max(LEAST_CONTEXT, doubled(most)), whole)
    columns = max((c.tree.shape[1] for c in found if c.tree is not None), default=0)
    if shaping.invariant:
        rows, width, context = max(rows, WIDE), max(width, WIDE), whole
        wanted = max(wanted, WIDE) if wanted else 0
    columns = max(LEAST_COLUMNS, doubled(columns)) if columns else 0
    return Shape(rows, wanted, doubled(len(found)), width, context, columns)


class Inputs:
    """The inputs of passes of one shape: numbers on the host, and the same as tensors on the device."""

    def __init__(self, shape: Shape, device: torch.device, scratch: int) -> None:
        self.shape, self.scratch = shape, scratch
        rows, wanted, count, width, context, columns = shape
        sizes: dict[str, tuple[int, ...]] = {
            "tokens": (rows,),
            "positions": (rows,),
            "wanted": (wanted,),
            "to": (rows,),
            "cells": (rows,),
        }
        sizes |= {"shown": (count * width,), "table": (count, context), "settled": (count,), "tree": (rows, columns)}
        lengths = [int(np.prod(size)) for size in sizes.values()]
        self._host = torch.zeros(sum(lengths), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.zeros(sum(lengths), dtype=torch.int64, device=device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None
        both = zip(sizes, sizes.values(), self._host.split(lengths), self._device.split(lengths), strict=True)
        self.numbers: dict[str, Ints] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for name, size, mine, theirs in both:
            self.numbers[name], self.tensors[name] = mine.view(size).numpy(), theirs.view(size)

    def work(self, flat: Flat, shaping: Shaping) -> Pass:
        """A pass over the tensors, whatever numbers they will have."""
        t, parts = self.tensors, {f.name for f in fields(Grid)} - {"kernel"}
        grid = Grid(**{name: t[name] for name in parts}, kernel=shaping.kernel)
        return Pass(t["tokens"], t["positions"], (), t["wanted"], flat.hidden, flat.plan, grid)

    def fill(self, flat: Flat, found: Sequence[Chain]) -> None:
        """Write a pass down, once the one before has left, and send it to the device."""
        if self._sent is not None:
            self._sent.synchronize()
        n, count = self.numbers, len(flat.tokens)
        for name, values in (("tokens", flat.tokens), ("positions", flat.positions), ("wanted", flat.wanted)):
            n[name][: len(values)], n[name][len(values) :] = values, 0
        n["to"][count:], n["cells"][count:] = self.scratch, 0
        n["settled"][:] = self.shape.context
        for index, chain in enumerate(found):
            self._chain(index, chain)
        n["table"][len(found) :], n["shown"][len(found) * self.shape.width :] = n["table"][:1], 0
        self._device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def _chain(self, index: int, chain: Chain) -> None:
        n, rows, first = self.numbers, len(chain.rows), index * self.shape.width
        n["cells"][chain.rows] = np.arange(first, first + rows)
        n["shown"][first : first + rows] = chain.rows
        n["shown"][first + rows : first + self.shape.width] = chain.rows[0]
        n["to"][chain.rows] = chain.entries[-rows:]  # a chain ends with what its rows write
        n["table"][index, : len(chain.entries)] = chain.entries
        n["table"][index, len(chain.entries) :] = chain.entries[0]
        if chain.tree is not None:
            columns = chain.tree.shape[1]
            n["settled"][index] = len(chain.entries) - columns
            n["tree"][chain.rows, :columns], n["tree"][chain.rows, columns:] = chain.tree, -1
