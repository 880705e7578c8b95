"""A constraint along the tree of a draft: which tokens may follow the committed text and every path behind it.

A matcher is walked down a path and back up again, so that only committed tokens move it. What was found of a path is
kept until a token is committed, and what lay below that token is kept on: the drafter and the target ask the same.
Masks may be found on another thread while the target runs, where the step before has asked for some; whatever is
asked meanwhile waits for them.
Does not: know what the constraint is; matchers do.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import cached_property
from typing import ClassVar

import numpy as np

from forerun.kernels.masks import Bits, packed, unpacked
from forerun.types import Bools

LOST = "the text has left its constraint"  # how sentences begin that blame a constraint for a text's end
COMPLEX = "the constraint is too complex here"
Path = tuple[int, ...]


class Matcher(ABC):
    """Where a text stands in its constraint. It is its owner's alone; `push` and `pop` walk it."""

    apart: ClassVar[bool] = False  # its masks may be found on another thread, and other threads run meanwhile

    @abstractmethod
    def mask(self) -> Bools:
        """Tokens that may come next [vocab], in an array of the caller's own."""

    def bits(self) -> Bits | None:
        """The same as bits [vocab / 8, rounded up], the lowest of a byte first, if that is what it is made of."""
        return None

    @abstractmethod
    def may_end(self) -> bool:
        """Whether the text is complete as it is."""

    @abstractmethod
    def push(self, token: int) -> bool:
        """Go on with a token; where it is forbidden: False, and nothing changes."""

    @abstractmethod
    def pop(self, count: int) -> None:
        """Take the newest tokens back, none of them from before `settle`."""

    def settle(self) -> None:  # noqa: B027 - few have anything to do
        """All tokens so far stay."""

    def trouble(self) -> str:
        """Why nothing may follow though the text is not complete, in a sentence; "" where there is no such reason."""
        return ""

    def hint(self) -> list[int]:
        """Tokens that come next whatever is chosen, as the tokenizer writes them; none where that is not known."""
        return []


class Mask:
    """What may follow a path, as bools [vocab] and as bits, each made of the other when asked for; to be read only."""

    def __init__(self, vocab: int, made: Bools | Bits) -> None:
        self._vocab, self._made = vocab, made
        made.flags.writeable = False  # whoever asks may be given this very one

    @cached_property
    def whole(self) -> Bools:
        if self._made.dtype == np.bool_:
            return self._made.view(np.bool_)
        whole = unpacked(self._made.view(np.uint8), self._vocab)
        whole.flags.writeable = False
        return whole

    @cached_property
    def bits(self) -> Bits:
        return packed(self._made.view(np.bool_)) if self._made.dtype == np.bool_ else self._made.view(np.uint8)


class Guide:
    """The `types.Guide` of one request. `ends` are the ids that end its text: allowed where the text is complete."""

    def __init__(self, matcher: Matcher, vocab: int, ends: Iterable[int], pool: Executor | None = None) -> None:
        self._matcher, self._vocab, self._ends, self._pool = matcher, vocab, sorted(ends), pool
        self._masks: dict[Path, Mask] = {}
        self._lost = False  # a committed token could not be read: nothing may follow it
        self._ahead: Future[None] | None = None  # what finds masks on another thread
        self._wanted = True  # masks were asked for since the last look ahead
        self.written = 0

    def masks(self, paths: Sequence[Sequence[int]]) -> Bools:
        self._wait()
        self._wanted = True
        asked = [tuple(path) for path in paths]
        self._find(self._unknown(asked))
        if len(asked) == 1:
            return self._masks[asked[0]].whole[None]
        return np.stack([self._masks[path].whole for path in asked])

    def bits(self, paths: Sequence[Path]) -> list[Bits]:
        self._wait()
        self._wanted = True
        self._find(self._unknown(paths))
        return [self._masks[path].bits for path in paths]

    def foresee(self, paths: Sequence[Path]) -> None:
        self._wait()
        wanted, self._wanted = self._wanted, False
        unknown = self._unknown(paths) if self._pool is not None and wanted and self._matcher.apart else ()
        if self._pool is not None and unknown:
            self._ahead = self._pool.submit(self._find, unknown)

    def _wait(self) -> None:
        """Until the matcher is this thread's again."""
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None

    def _unknown(self, paths: Sequence[Path]) -> list[Path]:
        """In an order in which what two of them share is walked once."""
        return sorted({path for path in paths if path not in self._masks})

    def _find(self, paths: Sequence[Path]) -> None:
        walked: list[int] = []
        try:
            for path in paths:
                self._back(walked, _shared(walked, path))
                if self._down(walked, path):
                    self._mask(path)
                else:
                    self._masks[path] = Mask(self._vocab, np.zeros(self._vocab, np.bool_))
        finally:  # a drafter that takes too long is interrupted where it stands
            self._back(walked, 0)

    def allows(self, paths: Sequence[Path]) -> list[bool]:
        self._wait()
        walked: list[int] = []
        found: dict[Path, bool] = {}
        try:
            for path in sorted(set(paths)):
                self._back(walked, _shared(walked, path))
                found[path] = self._down(walked, path) or self._closes(walked, path)
        finally:
            self._back(walked, 0)
        return [found[path] for path in paths]

    def _closes(self, walked: Sequence[int], path: Path) -> bool:
        """Whether all of a path but its last token is walked, and that ends the text."""
        last = path[len(walked) :]
        return not self._lost and len(last) == 1 and last[0] in self._ends and self._matcher.may_end()

    def _down(self, walked: list[int], path: Path) -> bool:
        """Go on from what is walked to the end of a path; False where it is forbidden, or ends before."""
        if self._lost:
            return False
        for token in path[len(walked) :]:
            if token in self._ends:
                return False
            walked.append(token)  # before it is pushed: an interrupt between the two would leave it there
            if not self._matcher.push(token):
                walked.pop()
                return False
        return True

    def _back(self, walked: list[int], length: int) -> None:
        if len(walked) > length:
            self._matcher.pop(len(walked) - length)
            del walked[length:]

    def _mask(self, path: Path) -> Mask:
        """Behind a path, where the matcher stands."""
        if path not in self._masks:
            bits, ends = self._matcher.bits(), self._matcher.may_end()
            if bits is None:
                mask = self._matcher.mask()
                mask[self._ends] = ends
                self._masks[path] = Mask(self._vocab, mask)  # whole, whenever this is interrupted
            else:
                for end in self._ends:
                    bits[end // 8] = bits[end // 8] & (0xFF - (1 << end % 8)) | ends << end % 8
                self._masks[path] = Mask(self._vocab, bits)
        return self._masks[path]

    def forced(self, path: Sequence[int], count: int) -> list[int]:
        self._wait()
        walked: list[int] = []
        found: list[int] = []
        try:
            alive = self._down(walked, tuple(path))
            while alive and len(found) < count:
                ahead = (self._matcher.hint() or self._only(tuple(walked)))[: count - len(found)]
                alive = bool(ahead) and self._down(walked, (*walked, *ahead))
                found = walked[len(path) :]
        finally:
            self._back(walked, 0)
        return found

    def _only(self, path: Path) -> list[int]:
        """The one token that is allowed where the matcher stands, behind a path, if it is one."""
        mask = self._mask(path).whole
        return [int(mask.argmax())] if np.count_nonzero(mask) == 1 else []

    @property
    def trouble(self) -> str:
        """Why nothing may follow, where the constraint itself is to blame."""
        self._wait()
        lost = f"{LOST}; simplify the constraint, or report this." if self._lost else ""
        return self._matcher.trouble() or lost

    def advance(self, token: int) -> bool:
        self._wait()
        self._masks = {path[1:]: mask for path, mask in self._masks.items() if path[:1] == (token,)}
        self._lost = self._lost or not self._matcher.push(token)
        self._matcher.settle()
        self.written += 1
        return self.over

    @property
    def over(self) -> bool:
        """Whether the text is complete and cannot go on."""
        if self._lost or not self._matcher.may_end():
            return False
        mask = self._mask(()).whole  # which a matcher may fail to find
        return self._matcher.may_end() and np.count_nonzero(mask) == np.count_nonzero(mask[self._ends])


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the beginning that two paths share."""
    pairs = zip(one, other)  # noqa: B905 - as far as the shorter one goes
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
