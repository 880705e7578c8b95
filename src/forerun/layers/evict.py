"""Which free block of a prefix cache is taken first; whoever needs it next has to compute it again.

Does not: touch blocks in use; know scopes, which find their own blocks only.
"""

from collections import OrderedDict
from collections.abc import Callable

from forerun.errors import ConfigError, unknown

GHOSTS = 4096  # evicted blocks that are remembered
DECAY = 0.99  # of what is known of mistakes, per eviction
TRUST = {"lru": -1.0, "predicted": 0.5}  # share of mistakes up to which bits are believed


def eviction_of(name: str) -> "Eviction | None":
    """The one that is spelled; None for `regions`, where what is found gives way to what is written beside it."""
    if name not in (*TRUST, "regions"):
        raise ConfigError(unknown("cache 'paged'", "eviction", name, (*TRUST, "regions")))
    return Eviction(TRUST[name]) if name in TRUST else None


class Eviction:
    """Least recently used, or by one bit per block: it is safe to discard until a request has found it (2210.02775).

    Of the safe ones the least recently used goes, or of all where none is. While more than `trust` of those that went
    by their bit were missed afterwards, bits are not believed, and this is LRU, as ever with a trust below 0.
    """

    def __init__(self, trust: float) -> None:
        self.trust, self.wrong = trust, 0.0  # share of those that went by their bit and were missed, of late
        self._found = set[int]()
        self._safe = OrderedDict[int, None]()  # free and never found
        self._ghosts = OrderedDict[bytes, None]()  # keys of what went by its bit

    def wrote(self, block: int) -> None:
        """A block holds a new prefix."""
        self._found.discard(block)

    def hit(self, block: int) -> None:
        """A request found it."""
        self._found.add(block)

    def missed(self, key: bytes) -> None:
        """A request looked for a prefix that no block holds."""
        if key in self._ghosts:
            del self._ghosts[key]
            self.wrong += 1 - DECAY

    def enters(self, block: int) -> None:
        """It is free now, the most recently used of those that are."""
        if block not in self._found:
            self._safe[block] = None

    def leaves(self, block: int) -> None:
        """It is in use again, or holds no prefix any more."""
        self._safe.pop(block, None)

    def victim(self, cached: OrderedDict[int, None], key: Callable[[int], bytes]) -> int:
        """The next one to go of `cached`, which are in the order in which they entered; `key` of what one holds."""
        oldest = next(iter(cached))
        chosen = next(iter(self._safe), oldest) if self.wrong <= self.trust else oldest
        self.wrong *= DECAY
        if chosen in self._safe:
            self._ghosts[key(chosen)] = None
            if len(self._ghosts) > GHOSTS:
                self._ghosts.popitem(last=False)
        return chosen
