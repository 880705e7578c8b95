"""Many token trees -> one flat pass, and back.

Does not: pad (`grid.py` does, for devices that want fixed shapes). A request with no draft costs one row.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any

import numpy as np
import torch

from forerun import host
from forerun.caches.contract import Cache
from forerun.types import NO_STATES, Cut, Draw, Flat, Ints, Lot, Output, Pass, PassOutput, Peaks, Segment, Work


def flatten(work: Sequence[Work], cache: Cache) -> Flat:
    """All works one after the other. All must ask for the same layer plan; hidden layers are merged."""
    tokens: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    segments: list[Segment] = []
    trees: list[tuple[int, ...] | None] = []
    lots: list[tuple[int, Lot]] = []
    hidden: set[int] = set()
    for w in work:
        past, start, count = cache.length(w.slot), len(tokens), len(w.tokens)
        segments.append(Segment(w.slot, start, count, past, w.base, None))
        if w.parents is None:
            trees.append(None)
            positions += range(past + w.base, past + w.base + count)
        else:
            behind, depths = branches(w.parents, w.base)
            trees.append(w.parents if behind is not None else None)
            positions += [past + d for d in depths]
        tokens += w.tokens
        wanted += [start + i for i in w.logits]
        if w.lot is not None:
            lots.append((len(wanted) - len(w.logits), w.lot))
        hidden.update(w.hidden)
    return Flat(tokens, positions, wanted, segments, trees, tuple(sorted(hidden)), work[0].plan, lots)


def masked(flat: Flat, device: torch.device) -> Flat:
    """With masks of the segments that hold trees."""
    if not any(flat.trees):
        return flat
    pairs = zip(flat.segments, flat.trees, strict=True)
    segments = [s if tree is None else s._replace(mask=_mask(tree, s.base, device)) for s, tree in pairs]
    return flat._replace(segments=segments)


def sent(flat: Flat, device: torch.device) -> Pass:
    """One flat, ragged pass as a model reads it."""
    every = len(flat.wanted) == len(flat.tokens)
    tokens, positions, rows = _sent([flat.tokens, flat.positions, [] if every else flat.wanted], device)
    return Pass(tokens, positions, tuple(flat.segments), None if every else rows, flat.hidden, flat.plan)


def pack(work: Sequence[Work], cache: Cache, device: torch.device) -> Pass:
    """One flat, ragged pass for all works."""
    return sent(masked(flatten(work, cache), device), device)


def _sent(lists: Sequence[list[int]], device: torch.device) -> list[torch.Tensor]:
    """Lists of numbers as tensors, by one array, for each costs as much as a small model's row."""
    numbers = np.array(list(chain.from_iterable(lists)), np.int64)
    if device.type != "cpu":
        return list(torch.from_numpy(numbers).to(device).split([len(part) for part in lists]))
    ends = accumulate(map(len, lists))
    return [torch.from_numpy(numbers[end - len(part) : end]) for part, end in zip(lists, ends, strict=True)]


def unpack(work: Sequence[Work], output: PassOutput) -> list[Output]:
    """Each work's own rows of a flat output."""
    found = output.peaks or peaks(output.logits)
    best, peak, mass = found.best, found.peak, found.mass
    if len(work) == 1 and not work[0].hidden:  # nothing to part
        answers, masses = output.answers[0] if output.answers else None, tuple(mass) if mass is not None else None
        return [Output(output.logits, tuple(best), tuple(peak), masses, {}, answers, _drawn(work[0], found, 0))]
    outputs, row, token = [], 0, 0
    for w, answers in zip(work, output.answers or repeat(None)):  # noqa: B905 - the last has no end
        end, last = row + len(w.logits), token + len(w.tokens)
        hidden = {layer: output.hidden[layer][token:last] for layer in w.hidden} if w.hidden else NO_STATES
        masses = tuple(mass[row:end]) if mass is not None else None
        own = Cut(output.logits, row, end), tuple(best[row:end]), tuple(peak[row:end])
        outputs.append(Output(*own, masses, hidden, answers, _drawn(w, found, row)))
        row, token = end, last
    return outputs


def _drawn(work: Work, found: Peaks, row: int) -> tuple[Draw | None, ...]:
    """What came of a work's lot: it goes down one path, a depth at each draw."""
    if work.lot is None or found.drawn is None or found.drawn[row][0] < 0:
        return ()
    keys, own = iter(work.lot.keys), found.drawn[row : row + len(work.logits)]
    return tuple([Draw(next(keys), *one) if one[0] >= 0 else None for one in own])


def peaks(logits: torch.Tensor) -> Peaks:
    """The first most likely token of every row [n, vocab], and its logit; NaN where the row has one."""
    if not logits.shape[0]:
        return Peaks((), ())
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        rows = logits.numpy()  # ten times as fast here as torch's own argmax
        best = rows.argmax(-1)
        return Peaks(best.tolist(), rows[np.arange(len(best)), best].tolist())
    return peaks_of(host.fetch(summary(logits)))


def peaks_of(numbers: np.ndarray[Any, Any]) -> Peaks:
    """What `summary` found, [3, n], once it is on the host."""
    best, peak, mass = numbers.tolist()
    return Peaks([int(b) for b in best], peak, mass)


def summary(logits: torch.Tensor) -> torch.Tensor:
    """What `Peaks` says of rows [n, vocab]: best token, its logit and the mass, float64 [3, n], on the device."""
    peak, best = logits.max(-1, keepdim=True)
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    mass = (wide - peak).exp().sum(-1, keepdim=True)
    return torch.cat([part.double() for part in (best, peak, mass)], 1).t()


@lru_cache(maxsize=1024)
def branches(parents: tuple[int, ...], base: int) -> tuple[Ints | None, tuple[int, ...]]:
    """How many positions entries lie behind the rows after `base` [count, len(parents)], and the rows' depths.

    -1 is an entry that a row does not see; no table where the tree is a chain. Remembered, because static trees come
    back at every step.
    """
    count = len(parents)
    if parents == tuple(range(-1, count - 1)):
        return None, tuple(range(base, count))
    rows, depths = [[-1] * count for _ in range(base, count)], list[int]()
    for node, row in enumerate(rows, base):
        seen, distance = node, 0
        while seen >= 0:
            row[seen] = distance
            seen, distance = parents[seen], distance + 1
        depths.append(distance - 1)
    return np.array(rows, np.int64), tuple(depths)


@lru_cache(maxsize=1024)
def _mask(parents: tuple[int, ...], base: int, device: torch.device) -> torch.Tensor:
    """Which unjudged entries the rows after `base` see [count, len(parents)]."""
    behind, _ = branches(parents, base)
    return torch.from_numpy(np.asarray(behind) >= 0).to(device)
