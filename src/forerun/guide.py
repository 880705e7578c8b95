"""A constraint along the tree of a draft: which tokens may follow the committed text and every path behind it.

A matcher is walked down a path and back up again, so that only committed tokens move it. What was found of a path is
kept until a token is committed, and what lay below that token is kept on: the drafter and the target ask the same.
Does not: know what the constraint is; matchers do.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np

from forerun.types import Bools

LOST = "the text has left its constraint"  # how sentences begin that blame a constraint for a text's end
COMPLEX = "the constraint is too complex here"
Path = tuple[int, ...]


class Matcher(ABC):
    """Where a text stands in its constraint. It is its owner's alone; `push` and `pop` walk it."""

    @abstractmethod
    def mask(self) -> Bools:
        """Tokens that may come next [vocab], in an array of the caller's own."""

    @abstractmethod
    def may_end(self) -> bool:
        """Whether the text is complete as it is."""

    @abstractmethod
    def push(self, token: int) -> bool:
        """Go on with a token; where it is forbidden: False, and nothing changes."""

    @abstractmethod
    def pop(self, count: int) -> None:
        """Take the newest tokens back."""

    def trouble(self) -> str:
        """Why nothing may follow though the text is not complete, in a sentence; "" where there is no such reason."""
        return ""

    def hint(self) -> list[int]:
        """Tokens that come next whatever is chosen, as the tokenizer writes them; none where that is not known."""
        return []


class Guide:
    """The `types.Guide` of one request. `ends` are the ids that end its text: allowed where the text is complete."""

    def __init__(self, matcher: Matcher, vocab: int, ends: Iterable[int]) -> None:
        self._matcher, self._vocab, self._ends = matcher, vocab, sorted(ends)
        self._masks: dict[Path, Bools] = {}
        self._lost = False  # a committed token could not be read: nothing may follow it
        self.written = 0

    def masks(self, paths: Sequence[Sequence[int]]) -> Bools:
        asked = [tuple(path) for path in paths]
        self._find(sorted({path for path in asked if path not in self._masks}))
        return np.stack([self._masks[path] for path in asked])

    def _find(self, paths: Sequence[Path]) -> None:
        """Walk through new paths in order, so that what two of them share is walked once."""
        walked: list[int] = []
        for path in paths:
            shared = _shared(walked, path)
            self._back(walked, shared)
            if self._down(walked, path):
                self._masks[path] = self._mask()
            else:
                self._masks[path] = np.zeros(self._vocab, np.bool_)
        self._back(walked, 0)

    def _down(self, walked: list[int], path: Path) -> bool:
        """Go on from what is walked to the end of a path; False where it is forbidden, or ends before."""
        if self._lost:
            return False
        for token in path[len(walked) :]:
            if token in self._ends or not self._matcher.push(token):
                return False
            walked.append(token)
        return True

    def _back(self, walked: list[int], length: int) -> None:
        if len(walked) > length:
            self._matcher.pop(len(walked) - length)
            del walked[length:]

    def _mask(self) -> Bools:
        mask = self._matcher.mask()
        mask[self._ends] = self._matcher.may_end()
        return mask

    def forced(self, path: Sequence[int], count: int) -> list[int]:
        walked: list[int] = []
        found: list[int] = []
        alive = self._down(walked, tuple(path))
        while alive and len(found) < count:
            ahead = (self._matcher.hint() or self._only(tuple(walked)))[: count - len(found)]
            alive = bool(ahead) and self._down(walked, (*walked, *ahead))
            found = walked[len(path) :]
        self._back(walked, 0)
        return found

    def _only(self, path: Path) -> list[int]:
        """The one token that is allowed where the matcher stands, behind a path, if it is one."""
        if path not in self._masks:
            self._masks[path] = self._mask()
        mask = self._masks[path]
        return [int(mask.argmax())] if np.count_nonzero(mask) == 1 else []

    @property
    def trouble(self) -> str:
        """Why nothing may follow, where the constraint itself is to blame."""
        lost = f"{LOST}; simplify the constraint, or report this." if self._lost else ""
        return self._matcher.trouble() or lost

    def advance(self, token: int) -> bool:
        self._masks = {path[1:]: mask for path, mask in self._masks.items() if path[:1] == (token,)}
        self._lost = self._lost or not self._matcher.push(token)
        self.written += 1
        return self.over

    @property
    def over(self) -> bool:
        """Whether the text is complete and cannot go on."""
        mask = self.masks([()])[0]
        return (
            not self._lost and self._matcher.may_end() and np.count_nonzero(mask) == np.count_nonzero(mask[self._ends])
        )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the beginning that two paths share."""
    pairs = zip(one, other)  # noqa: B905 - as far as the shorter one goes
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
