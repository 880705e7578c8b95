"""The books of a paged cache: who owns which block, which are free, and which hold a prefix that can be found.

Does not: touch a tensor; know slots.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from struct import pack
from typing import NamedTuple

from forerun.errors import CacheError
from forerun.layers.evict import Eviction
from forerun.types import owner


class Prefix(NamedTuple):
    """What a full committed block holds: its tokens, after everything that `parent` stands for."""

    key: bytes
    parent: bytes  # key of the block before it; empty for a first block
    tokens: tuple[int, ...]
    scope: str

    @classmethod
    def of(cls, parent: bytes, tokens: Sequence[int], scope: str) -> "Prefix":
        ids = pack(f"<{len(tokens)}I", *tokens)
        text = parent + ids + scope.encode(errors="surrogatepass")  # the first two are of known length
        return cls(sha256(text).digest(), parent, tuple(tokens), scope)


class Blocks:
    """Owners, free lists and prefix index. A block has owners or is free; a free one may still be found.

    Without an eviction what is found gives way to what is written, where that keeps a slot's blocks side by side; what
    another scope left does so only where no block is clean. Once several owners have left something, none of them keeps
    more than `share` of the blocks: its own oldest go. The empty scope is everybody's, and has no share.
    """

    def __init__(self, count: int, region: int, eviction: Eviction | None = None, share: float = 1.0) -> None:
        self._eviction, self._most = eviction, int(share * count)
        self.owners = [0] * count
        self.prefix: list[Prefix | None] = [None] * count
        self._sound: set[int] = set()  # blocks that were looked at since they were learned
        self.index: dict[bytes, int] = {}  # key -> the one block that is found by it
        self.clean: OrderedDict[int, None] = OrderedDict(
            (b, None) for b in range(count)
        )  # free, nothing to find; oldest first
        self.cached: OrderedDict[int, None] = OrderedDict()  # free, but found until taken; oldest first
        self._left: dict[str, OrderedDict[int, None]] = {}  # owner -> those of the cached ones that are its own
        self._region = region  # blocks; a slot that starts does so in a region that nobody uses, to grow in peace
        self._used = [0] * -(-count // region)
        self._stamps, self._clock = [0] * len(self._used), 0

    def free(self) -> int:
        return len(self.clean) + len(self.cached)

    def take(self, last: int, scope: str = "") -> int:
        """A block for one owner: the one after `last` if it may be taken; what it held is forgotten."""
        block = last + 1
        if last < 0 or block == len(self.owners) or not self._may_take(block, scope):
            block = self._start(scope)
        self.forget(block)
        del self.clean[block]
        self._own(block)
        return block

    def _may_take(self, block: int, scope: str) -> bool:
        """Whether it is free, and an eviction would not choose another first."""
        if block in self.clean or self._eviction is not None or self.owners[block]:
            return block in self.clean
        return not self.clean or self._held(block).scope == scope

    def _start(self, scope: str) -> int:
        free = [region for region, used in enumerate(self._used) if not used]
        idle = [region for region in free if self._may_take(region * self._region, scope)]
        if idle:
            return min(idle, key=self._stamps.__getitem__) * self._region
        if self.clean or self._eviction is None:
            return next(iter(self.clean or self.cached))
        return self._eviction.victim(self.cached, lambda block: self._held(block).key)

    def _held(self, block: int) -> Prefix:
        prefix = self.prefix[block]
        assert prefix is not None  # noqa: S101 - only those that hold one are cached
        return prefix

    def _own(self, block: int) -> None:
        self.owners[block] += 1
        if self.owners[block] == 1:
            self._used[block // self._region] += 1

    def share(self, block: int) -> None:
        """One more owner, of a block in use or of a free one that was found."""
        self._uncache(block)
        self._own(block)
        if self._eviction is not None:
            self._eviction.hit(block)

    def release(self, block: int) -> None:
        """One owner less; without owners a block is free, and still found if it holds a prefix."""
        self.owners[block] -= 1
        if self.owners[block] == 0:
            region = block // self._region
            self._used[region] -= 1
            self._clock += 1
            self._stamps[region] = self._clock
            if self.prefix[block] is None:
                self.clean[block] = None
            else:
                self._cache(block, owner(self._held(block).scope))

    def _cache(self, block: int, whose: str) -> None:
        """It is free, and can be found until it is taken."""
        mine = self._left.setdefault(whose, OrderedDict())
        self.cached[block] = mine[block] = None
        if self._eviction is not None:
            self._eviction.enters(block)
        while whose and len(self._left) > 1 and len(mine) > self._most:
            self.forget(next(iter(mine)))

    def _uncache(self, block: int) -> bool:
        """Whether it was free and could be found; it is neither list's now."""
        if block not in self.cached:
            return False
        del self.cached[block]
        whose = owner(self._held(block).scope)
        del self._left[whose][block]
        if not self._left[whose]:
            del self._left[whose]
        if self._eviction is not None:
            self._eviction.leaves(block)
        return True

    def learn(self, block: int, prefix: Prefix) -> None:
        """Let a full committed block be found, unless another with the same content is."""
        if prefix.key not in self.index:
            self.index[prefix.key] = block
            self.prefix[block] = prefix
            if self._eviction is not None:
                self._eviction.wrote(block)

    def forget(self, block: int) -> None:
        """The block is about to change: it is not found any more."""
        prefix = self.prefix[block]
        if prefix is not None:
            if self._uncache(block):
                self.clean[block] = None
            del self.index[prefix.key]
            self.prefix[block] = None
            self._sound.discard(block)

    def find(self, prefix: Prefix, finite: Callable[[int], bool] | None = None) -> int | None:
        """The block that holds exactly this.

        Before others read it for the first time it is asked whether it holds nothing but numbers, or is not found
        again: an infinite key hides its token, which no logits tell.
        """
        block = self.index.get(prefix.key)
        if block is None and self._eviction is not None:
            self._eviction.missed(prefix.key)
        if block is None or self.prefix[block] != prefix:
            return None
        if finite is not None and block not in self._sound and not finite(block):
            self.forget(block)
            return None
        self._sound.add(block)
        return block

    def check(self, owned: Iterable[int], size: int) -> None:
        """Raise CacheError unless the books agree with each other and with the blocks that slots own."""
        count = Counter(owned)
        if [count[block] for block in range(len(self.owners))] != self.owners:
            raise CacheError("a block's owners are not the slots that list it; take and release in pairs.")
        free = [*self.clean, *self.cached]
        if sorted(free) != [block for block, owners in enumerate(self.owners) if not owners]:
            raise CacheError("free and used blocks do not add up; release a block once, and always.")
        if any(self.prefix[b] for b in self.clean) or not all(self.prefix[b] for b in self.cached):
            raise CacheError("a free block is in the wrong list; free blocks with a prefix are kept apart.")
        left = [(whose, block) for whose, mine in self._left.items() for block in mine]
        if sorted(left) != sorted((owner(self._held(block).scope), block) for block in self.cached):
            raise CacheError("what an owner left and what can be found disagree; cache and uncache in pairs.")
        if {p.key: block for block, p in enumerate(self.prefix) if p} != self.index:
            raise CacheError("the prefix index and the blocks disagree; learn and forget in pairs.")
        for prefix in filter(None, self.prefix):
            if len(prefix.tokens) != size or Prefix.of(*prefix[1:]) != prefix:
                raise CacheError("a block in the prefix index is not full, or its hash is not that of its tokens.")
