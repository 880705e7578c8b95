"""Blocks of tokens: requests share what they have in common and copy a block before they change it (2309.06180).

A full committed block is found again by a hash chained over everything before it, within one scope. Blocks are
laid side by side where they can be, so that reading is a view; a slot whose blocks lie apart is gathered.
Does not: merge blocks that two requests computed at the same time; write a block to disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from forerun.caches.contract import Cache, check_path
from forerun.errors import CacheError, ConfigError
from forerun.layers.evict import eviction_of
from forerun.layers.kv_blocks import Blocks, Prefix
from forerun.layers.kv_rows import KVRows, Place
from forerun.types import Facts, KVLayout, Pass, Segment


@dataclass(slots=True)
class Slot:
    """One request's tokens and blocks. Blocks beyond the committed ones are reserved, until the next `keep`."""

    scope: str
    tokens: list[int] = field(default_factory=list)  # committed
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # of the full committed blocks
    unjudged: int = 0
    beside: bool = True  # every block lies right after the one before it
    table: torch.Tensor | None = None  # the blocks, for gathering; made when needed

    def append(self, block: int) -> None:
        self.beside = self.beside and (not self.blocks or block == self.blocks[-1] + 1)
        self.blocks.append(block)
        self.table = None

    def recount(self) -> None:
        """After blocks were replaced or removed."""
        self.beside = not self.blocks or self.blocks == list(range(self.blocks[0], self.blocks[-1] + 1))
        self.table = None


class PagedCache(Cache):
    """Block b holds the rows [b * block_size, (b + 1) * block_size)."""

    facts = Facts(("paging-predictions",), "2309.06180", shares=True, evidence="docs/results/README.md#mooncake")
    rows: KVRows

    @dataclass(frozen=True)
    class Options:
        """How memory is divided, and whether requests share it."""

        block_size: int = 16  # tokens
        blocks: int = 0  # 0: enough for every slot at full length
        prefix: bool = True  # find the blocks of earlier requests of the same scope
        evict: str = "regions"  # of these, whom: who lies where new ones go, lru, or predicted
        share: float = 0.5  # of the blocks, that what one scope left may fill where others have left something too
        poison: bool = False  # fill with NaN what nobody may read; for tests

        def __post_init__(self) -> None:
            for name, least, most in (("block_size", 1, 2**20), ("blocks", 0, 2**40), ("share", 0, 1)):
                if not least <= (got := getattr(self, name)) <= most:
                    raise ConfigError(f"cache option '{name}' is {got}; give {least} to {most}.")
            eviction_of(self.evict)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(block_size=4, poison=True)

    def __init__(self, options: Options, layout: KVLayout, slots: int, length: int) -> None:
        self.options, self.slots, self.capacity = options, slots, length
        self._size = options.block_size
        longest = -(-length // self._size)
        count = options.blocks or slots * longest
        self._blocks = Blocks(count, max(1, min(longest, count // slots)), eviction_of(options.evict), options.share)
        self.rows = KVRows(layout, count * self._size)
        self._device = layout.device
        self._idle = list(range(slots - 1, -1, -1))
        self._open: dict[int, Slot] = {}
        self._placed: tuple[Pass, Place] | None = None
        for block in range(count):
            self._poison(block)

    def _admit(self, slot: Slot) -> int:
        if not self._idle:
            raise CacheError(f"all {self.slots} slots are taken; wait for a request to end, or raise max_requests.")
        number = self._idle.pop()
        self._open[number] = slot
        return number

    def open(self, tokens: Sequence[int], scope: str = "") -> tuple[int, int]:
        s = Slot(scope)
        number = self._admit(s)
        last = (len(tokens) - 1) // self._size if self.options.prefix else 0  # blocks that may be found
        for i in range(last):
            prefix = Prefix.of(s.keys[-1] if s.keys else b"", tokens[i * self._size : (i + 1) * self._size], scope)
            block = self._blocks.find(prefix, lambda found: self.rows.finite(found * self._size, self._size))
            if block is None:
                break
            self._blocks.share(block)
            s.append(block)
            s.keys.append(prefix.key)
        held = len(s.blocks) * self._size
        s.tokens.extend(tokens[:held])
        return number, held

    def close(self, slot: int, *, sound: bool = True) -> None:
        s = self._open.pop(slot, None)
        if s is None:
            raise CacheError(f"slot {slot} is closed already; close a slot once.")
        if not sound:
            for block in s.blocks:
                self._blocks.forget(block)
        self._cut(s, 0)
        self._idle.append(slot)

    def fork(self, slot: int) -> int:
        s = self._open[slot]
        full, part = divmod(len(s.tokens), self._size)
        copied = s.unjudged > 0 and part > 0  # the source writes there, so the twin cannot share it
        if copied and not self._blocks.free():
            raise CacheError("no block is free for a fork amid unjudged tokens; fork after `keep`, or raise blocks.")
        twin = Slot(s.scope, list(s.tokens), [], list(s.keys))
        number = self._admit(twin)
        if not s.unjudged:
            self._trim(s)
        for block in s.blocks[: full + (part > 0 and not copied)]:
            self._blocks.share(block)
            twin.append(block)
        if copied:
            twin.append(self._copy(s.blocks[full], part, twin.blocks[-1] if twin.blocks else -1, s.scope))
        self._placed = None
        return number

    def length(self, slot: int) -> int:
        return len(self._open[slot].tokens)

    def unjudged(self, slot: int) -> int:
        return self._open[slot].unjudged

    def reserve(self, slot: int, count: int) -> bool:
        s = self._open[slot]
        end = len(s.tokens) + s.unjudged + count
        if count <= 0 or end > self.capacity:
            return count <= 0
        tail = len(s.tokens) // self._size  # the block that the next token goes to
        shared = tail < len(s.blocks) and self._blocks.owners[s.blocks[tail]] > 1
        missing = -(-end // self._size) - len(s.blocks)
        if max(missing, 0) + shared > self._blocks.free():
            return False
        if shared:
            self._unshare(s, tail)
        elif tail < len(s.blocks):
            self._blocks.forget(s.blocks[tail])
        for _ in range(missing):
            s.append(self._take(s.blocks[-1] if s.blocks else -1, s.scope))
        return True

    def _take(self, last: int, scope: str) -> int:
        self._poison(block := self._blocks.take(last, scope))
        return block

    def _copy(self, source: int, count: int, last: int, scope: str) -> int:
        """A new block, after `last` if it can be, with the first `count` tokens of another."""
        block = self._take(last, scope)
        self.rows.move(*(range(b * self._size, b * self._size + count) for b in (source, block)))
        return block

    def _unshare(self, s: Slot, tail: int) -> None:
        old = s.blocks[tail]
        s.blocks[tail] = self._copy(old, len(s.tokens) % self._size, s.blocks[tail - 1] if tail else -1, s.scope)
        self._blocks.release(old)
        s.recount()
        self._placed = None

    def write(self, layer: int, work: Pass, keys: torch.Tensor, values: torch.Tensor) -> None:
        if self._placed is None or self._placed[0] is not work:
            self._placed = work, self._place(work)
        self.rows.write(layer, self._placed[1], keys, values)

    def _place(self, work: Pass) -> Place:
        rows: list[int] = []
        for segment in work.segments:
            s, at = self._open[segment.slot], segment.past + segment.base
            self._check_room(s, segment)
            rows.extend(self._row(s, i) for i in range(at, at + segment.rows))
        return self.rows.place(rows)

    def runs(self, segment: Segment) -> list[tuple[int, int]]:
        s, count = self._open[segment.slot], segment.past + segment.base + segment.rows
        self._check_room(s, segment)
        if s.beside:
            return [(s.blocks[0] * self._size, count)]
        firsts = range(0, count, self._size)
        return [(self._row(s, first), min(self._size, count - first)) for first in firsts]

    def _row(self, s: Slot, position: int) -> int:
        return s.blocks[position // self._size] * self._size + position % self._size

    def _check_room(self, s: Slot, segment: Segment) -> None:
        tail = segment.past // self._size
        full = segment.past + segment.base + segment.rows > len(s.blocks) * self._size
        if segment.rows and (full or self._blocks.owners[s.blocks[tail]] != 1):
            raise CacheError(f"slot {segment.slot} has no room for {segment.rows} tokens; reserve before writing.")

    def read(self, layer: int, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        s = self._open[segment.slot]
        end = segment.past + segment.base + segment.rows
        if s.beside:
            first = s.blocks[0] * self._size if s.blocks else 0
            return self.rows.read(layer, lambda strip: strip.narrow(1, first, end))
        if s.table is None:
            s.table = torch.tensor(s.blocks, dtype=torch.int64, device=self._device)
        table = s.table
        return self.rows.read(layer, lambda strip: self._gather(strip, table, end))

    def _gather(self, strip: torch.Tensor, table: torch.Tensor, end: int) -> torch.Tensor:
        heads, _, width = strip.shape
        found = strip[:, : self.rows.scratch].view(heads, -1, self._size * width).index_select(1, table)
        return found.view(heads, -1, width).narrow(1, 0, end)

    def advance(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._open[segment.slot].unjudged = segment.base + segment.rows
        self._placed = None

    def keep(self, slot: int, tokens: Sequence[int], path: Sequence[int]) -> None:
        s = self._open[slot]
        check_path(tokens, path, s.unjudged)
        start = len(s.tokens)
        if path and path[-1] != len(path) - 1:  # close the gaps that rejected siblings leave
            moved = [(start + entry, start + i) for i, entry in enumerate(path) if entry != i]
            source, to = zip(*moved, strict=True)
            self.rows.move([self._row(s, i) for i in source], [self._row(s, i) for i in to])
        s.tokens.extend(tokens)
        s.unjudged = 0
        self._learn(s)
        self._trim(s)

    def _learn(self, s: Slot) -> None:
        """Let the newly full blocks be found."""
        if not self.options.prefix:
            return
        for i in range(len(s.keys), len(s.tokens) // self._size):
            tokens = s.tokens[i * self._size : (i + 1) * self._size]
            prefix = Prefix.of(s.keys[-1] if s.keys else b"", tokens, s.scope)
            s.keys.append(prefix.key)
            self._blocks.learn(s.blocks[i], prefix)

    def _trim(self, s: Slot) -> None:
        """Give back what lies beyond the committed tokens."""
        self._cut(s, -(-len(s.tokens) // self._size))
        part = len(s.tokens) % self._size
        if part and self._blocks.owners[s.blocks[-1]] == 1 and not self._blocks.prefix[s.blocks[-1]]:
            self._poison(s.blocks[-1], part)

    def _cut(self, s: Slot, count: int) -> None:
        """Release all but the first `count` blocks; the last first, so that the start of a prefix lives longest."""
        if len(s.blocks) == count:
            return
        while len(s.blocks) > count:
            block = s.blocks.pop()
            self._blocks.release(block)
            if block in self._blocks.clean:
                self._poison(block)
        s.recount()
        self._placed = None

    def _poison(self, block: int, start: int = 0) -> None:
        if self.options.poison:
            self.rows.poison(block * self._size + start, self._size - start)

    def checkpoint(self, slot: int) -> int:
        return len(self._open[slot].tokens)

    def rollback(self, slot: int, mark: int) -> None:
        s = self._open[slot]
        if not 0 <= mark <= len(s.tokens):
            raise CacheError(f"slot {slot} holds {len(s.tokens)} tokens, not {mark}; roll back to a checkpoint.")
        del s.tokens[mark:], s.keys[mark // self._size :]
        s.unjudged = 0
        self._trim(s)

    def free(self) -> int:
        return self._blocks.free() * self._size

    def check(self) -> None:
        if sorted([*self._idle, *self._open]) != list(range(self.slots)):
            raise CacheError("free and taken slots do not add up; give a slot back once, and always.")
        self._blocks.check((b for s in self._open.values() for b in s.blocks), self._size)
        for number, s in self._open.items():
            self._check_slot(number, s)

    def _check_slot(self, number: int, s: Slot) -> None:
        held = len(s.tokens) + s.unjudged
        if held > min(self.capacity, len(s.blocks) * self._size):
            raise CacheError(f"slot {number} holds more than its blocks; reserve before writing.")
        if self.options.prefix and len(s.keys) != len(s.tokens) // self._size:
            raise CacheError(f"slot {number} has {len(s.keys)} keys for its full blocks; one per block.")
        for i, block in enumerate(s.blocks):
            start, prefix = i * self._size, self._blocks.prefix[block]
            written = start >= len(s.tokens) or (s.unjudged > 0 and start + self._size > len(s.tokens))
            if written and (prefix or self._blocks.owners[block] > 1):
                raise CacheError(f"slot {number} may write to a block that others see; copy it first.")
            tokens = tuple(s.tokens[start : start + self._size])
            if prefix and (prefix.tokens[: len(tokens)] != tokens or prefix.scope != s.scope):
                raise CacheError(f"a block of slot {number} is found by tokens that it does not hold; forget it first.")
