"""What a cache is: it remembers keys and values per slot, holds unjudged tokens, and forgets what was rejected.

A slot has committed tokens, then unjudged ones (a chunk, or the nodes of a draft). `keep` is the only way from one
to the other. After every token was rejected the slot is bit-equal to one that never drafted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import torch

from forerun.errors import CacheError
from forerun.types import Facts, KVLayout, Pass, Segment

Pick = Callable[[torch.Tensor], torch.Tensor]  # a strip [heads, rows, any width] -> some of its rows


class Rows(Protocol):
    """Where keys and values lie, [heads, rows, dim] per layer; compiled and padded passes write and read them there.

    In int8 each entry and head has a scale, [heads, rows, 1] per layer; else those tensors are empty.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_scales: list[torch.Tensor]
    value_scales: list[torch.Tensor]
    scratch: int  # a row that nobody reads: padding writes there
    noted: list[tuple[list[int], list[int]]] | None  # rows that were moved, from and to; None: nobody wants to know

    def write(self, layer: int, place: Any, keys: torch.Tensor, values: torch.Tensor) -> None: ...  # noqa: ANN401
    def read(self, layer: int, pick: Pick) -> tuple[torch.Tensor, torch.Tensor]: ...


class Cache(ABC):
    """Keys and values of many requests. Not thread-safe: one engine owns it."""

    facts: ClassVar[Facts]
    Options: ClassVar[type[Any]]
    rows: Rows

    @abstractmethod
    def __init__(self, options: Any, layout: KVLayout, slots: int, length: int) -> None:  # noqa: ANN401
        """Room for `slots` requests of at most `length` tokens each, unjudged ones included."""

    @classmethod
    def toy(cls) -> Any:  # noqa: ANN401
        """Options for the contract tests: small, so that limits are met."""
        return cls.Options()

    @abstractmethod
    def open(self, tokens: Sequence[int], scope: str = "") -> tuple[int, int]:
        """A slot for a request, and how many of its tokens the cache already holds (0 where nothing is shared).

        Prefixes are shared only within one `scope`. At least the last token is never counted as held, so that its
        logits are computed. Raises CacheError when no slot is free.
        """

    @abstractmethod
    def close(self, slot: int, *, sound: bool = True) -> None:
        """Give the slot and all its memory back; where it is not sound, nobody is to find what it read or wrote."""

    @abstractmethod
    def fork(self, slot: int) -> int:
        """A new slot with the same committed tokens, without computing them again. Raises CacheError when full.

        Ends the reservation of a slot without unjudged tokens: reserve again before its next pass.
        """

    @abstractmethod
    def length(self, slot: int) -> int:
        """Number of committed tokens."""

    @abstractmethod
    def unjudged(self, slot: int) -> int:
        """Number of tokens after the committed ones that still await `keep`."""

    @abstractmethod
    def reserve(self, slot: int, count: int) -> bool:
        """Make room for `count` more tokens, before each pass; False, with nothing changed, when there is none."""

    @abstractmethod
    def write(self, layer: int, work: Pass, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [rows, heads, dim] of every segment's rows after what its slot holds.

        The segments lie in order and cover the rows; their room is reserved. Raises CacheError where it is not.
        """

    @abstractmethod
    def read(self, layer: int, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [heads, past + base + count, dim] of a segment, its own rows included; a view if it can."""

    @abstractmethod
    def runs(self, segment: Segment) -> list[tuple[int, int]]:
        """Where the entries of a segment lie in `rows`, its own included: (first row, count), in order.

        Raises CacheError where there is no room for its rows: reserve before.
        """

    @abstractmethod
    def advance(self, segments: Sequence[Segment]) -> None:
        """A pass over them is done, or begun: their rows are now unjudged tokens of their slots."""

    @abstractmethod
    def keep(self, slot: int, tokens: Sequence[int], path: Sequence[int]) -> None:
        """Commit the unjudged entries `path` (ascending), whose ids are `tokens`; every other unjudged one vanishes.

        `path` counts from the first unjudged token, of earlier passes too; `tokens[i]` is the id of `path[i]`.
        """

    def read_ahead(self, slot: int, tokens: Sequence[int], beyond: int) -> list[tuple[int, int]]:
        """Passes begin that read these tokens, as text, and up to `beyond` nodes behind them; where all of that lies.

        The tokens are committed, and `beyond` nodes await `keep`, read or not. Nobody else uses the slot until the
        passes have ended. Raises CacheError where the room for both is not reserved.
        """
        segment = Segment(slot, 0, len(tokens), self.length(slot), 0, None)
        self.advance([segment])
        self.keep(slot, tokens, range(len(tokens)))
        self.reserve(slot, beyond)  # `keep` gives back what nobody holds
        behind = segment._replace(rows=beyond, past=segment.past + len(tokens))
        runs = self.runs(behind)
        self.advance([behind])
        return runs

    @abstractmethod
    def checkpoint(self, slot: int) -> int:
        """A mark of the committed state that `rollback` returns to."""

    @abstractmethod
    def rollback(self, slot: int, mark: int) -> None:
        """Forget everything committed after `mark`, and every unjudged token."""

    @abstractmethod
    def free(self) -> int:
        """How many tokens new slots could hold: the room that no slot has."""

    @abstractmethod
    def check(self) -> None:
        """Raise CacheError unless the books balance: owners, lengths, free room, shared blocks."""

    def snapshot(self, slot: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies of the committed keys and values per layer [heads, length, dim]; for tests and for moving a slot."""
        segment = Segment(slot, 0, 0, self.length(slot), 0, None)
        pairs = (self.read(layer, segment) for layer in range(self.num_layers))
        return [(k.clone(), v.clone()) for k, v in pairs]

    @property
    def num_layers(self) -> int:
        """Layers of the layout."""
        return len(self.rows.keys)


def check_path(tokens: Sequence[int], path: Sequence[int], unjudged: int) -> None:
    """Raise CacheError unless `path` ascends through the unjudged entries, one id for each."""
    if len(tokens) != len(path):
        raise CacheError(f"{len(path)} entries are kept with {len(tokens)} ids; give one id per entry.")
    last = -1
    for entry in path:
        if not last < entry < unjudged:
            raise CacheError(f"entry {entry} after {last} is not on a path through {unjudged} unjudged tokens; ascend.")
        last = entry
