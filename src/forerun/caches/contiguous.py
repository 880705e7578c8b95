"""One fixed strip of memory per request: positions are offsets, reading is a view.

Does not: share prefixes between requests; hold more than `slots` requests or grow a slot beyond `length` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forerun.caches.contract import Cache, check_path
from forerun.errors import CacheError
from forerun.layers.kv_rows import KVRows, Place
from forerun.types import Facts, KVLayout, Pass, Segment


class ContiguousCache(Cache):
    """Slot s owns the rows [s * length, (s + 1) * length)."""

    facts = Facts()
    rows: KVRows

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, layout: KVLayout, slots: int, length: int) -> None:
        self.options, self.slots, self.capacity = options, slots, length
        self.rows = KVRows(layout, slots * length)
        self._placed: tuple[Pass, Place] | None = None
        self._free = list(range(slots - 1, -1, -1))
        self._committed, self._unjudged = [0] * slots, [0] * slots
        self._open = [False] * slots

    def open(self, tokens: Sequence[int], scope: str = "") -> tuple[int, int]:
        if not self._free:
            raise CacheError(f"all {self.slots} slots are taken; wait for a request to end, or raise max_requests.")
        slot = self._free.pop()
        self._committed[slot] = self._unjudged[slot] = 0
        self._open[slot] = True
        return slot, 0

    def close(self, slot: int, *, sound: bool = True) -> None:
        if not self._open[slot]:
            raise CacheError(f"slot {slot} is closed already; close a slot once.")
        self._open[slot] = False
        self._free.append(slot)

    def fork(self, slot: int) -> int:
        twin, _ = self.open(())
        held = self._committed[slot]
        self.rows.copy(slot * self.capacity, twin * self.capacity, held)
        self._committed[twin] = held
        return twin

    def length(self, slot: int) -> int:
        return self._committed[slot]

    def unjudged(self, slot: int) -> int:
        return self._unjudged[slot]

    def reserve(self, slot: int, count: int) -> bool:
        return self._committed[slot] + self._unjudged[slot] + count <= self.capacity

    def write(self, layer: int, work: Pass, keys: torch.Tensor, values: torch.Tensor) -> None:
        if self._placed is None or self._placed[0] is not work:
            self._placed = work, self._place(work)
        self.rows.write(layer, self._placed[1], keys, values)

    def _place(self, work: Pass) -> Place:
        rows: list[int] = []
        for s in work.segments:
            first, end = self.runs(s)[0]
            rows.extend(range(first + end - s.rows, first + end))
        return self.rows.place(rows)

    def runs(self, segment: Segment) -> list[tuple[int, int]]:
        return self._strip(segment.slot, segment.past + segment.base + segment.rows, segment.rows)

    def _strip(self, slot: int, count: int, new: int) -> list[tuple[int, int]]:
        """Where so many entries lie, of which some are new."""
        if count > self.capacity:
            raise CacheError(f"slot {slot} has no room for {new} more tokens; reserve before writing.")
        return [(slot * self.capacity, count)]

    def read(self, layer: int, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        first, count = segment.slot * self.capacity, segment.past + segment.base + segment.rows
        return self.rows.read(layer, lambda strip: strip.narrow(1, first, count))

    def advance(self, segments: Sequence[Segment]) -> None:
        for s in segments:
            self._unjudged[s.slot] = s.base + s.rows
        self._placed = None

    def keep(self, slot: int, tokens: Sequence[int], path: Sequence[int]) -> None:
        check_path(tokens, path, self._unjudged[slot])
        start = self._committed[slot]
        if path and path[-1] != len(path) - 1:  # close the gaps that rejected siblings leave
            first = slot * self.capacity + start
            moved = [(first + entry, first + i) for i, entry in enumerate(path) if entry != i]
            self.rows.move(*zip(*moved, strict=True))
        self._committed[slot] = start + len(path)
        self._unjudged[slot] = 0

    def read_ahead(self, slot: int, tokens: Sequence[int], beyond: int) -> list[tuple[int, int]]:
        held = self._committed[slot] + len(tokens)
        runs = self._strip(slot, held + beyond, len(tokens) + beyond)
        self._committed[slot], self._unjudged[slot] = held, beyond
        return runs

    def checkpoint(self, slot: int) -> int:
        return self._committed[slot]

    def rollback(self, slot: int, mark: int) -> None:
        if not 0 <= mark <= self._committed[slot]:
            held = self._committed[slot]
            raise CacheError(f"slot {slot} holds {held} tokens, not {mark}; roll back to a checkpoint.")
        self._committed[slot], self._unjudged[slot] = mark, 0

    def free(self) -> int:
        return len(self._free) * self.capacity

    def check(self) -> None:
        taken = [slot for slot in range(self.slots) if self._open[slot]]
        if sorted(self._free + taken) != list(range(self.slots)):
            raise CacheError("free and taken slots do not add up; give a slot back once, and always.")
        over = [s for s in taken if self._committed[s] + self._unjudged[s] > self.capacity]
        if over:
            raise CacheError(f"slot {over[0]} holds more than its {self.capacity} tokens; reserve before writing.")
