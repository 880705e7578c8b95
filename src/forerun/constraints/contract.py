"""What a constraint is: it reads what a request says a text must be, and says at every place which tokens may follow.

`self` holds options and what all requests share (a vocabulary). The matcher that `compile` begins is one request's.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar

from forerun.errors import ForerunError, RequestError
from forerun.guide import Guide, Matcher
from forerun.member import Member
from forerun.types import Constraint, Setup

KEPT = 1 << 28  # bytes of compiled constraints
_EACH, _CHARACTER = 1 << 23, 512  # bytes that one takes, and a character of it: what the greediest that were found take
_COMPILERS = 32


class Compiler(Member):
    """One kind of constraint."""

    example: ClassVar[str]  # what it can read, for the contract tests
    words: ClassVar[tuple[str, ...]] = ("a", "b", "c")  # tokens by which that can be written, and broken

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    def grammar(self, text: str) -> str | None:
        """What llguidance will be told to compile; None where it is not needed. RequestError as `compile` has it."""
        return None

    @abstractmethod
    def compile(self, text: str) -> Callable[[], Matcher]:
        """What begins a text under this constraint. RequestError, in one sentence, for what cannot be read."""


class Guides:
    """Guides for the requests of one engine; what was compiled last is kept, as requests come with the same schema.

    `beside`: masks are found on another thread during passes. Where these have all cores, that costs what it saves
    and makes the slowest steps slower.
    """

    def __init__(self, compiler: Callable[[str], Compiler], vocab: int, *, beside: bool = True) -> None:
        self._vocab = vocab
        self._pool = ThreadPoolExecutor(1, "forerun-masks") if beside else None  # a thread once it is first needed
        self._compiler = lru_cache(maxsize=_COMPILERS)(compiler)
        self._kept, self._lock = dict[Constraint, Callable[[], Matcher]](), Lock()  # what was asked for last at the end

    def knows(self, constraint: Constraint) -> bool:
        """Whether it is compiled."""
        return constraint in self._kept

    def grammar(self, constraint: Constraint) -> str | None:
        """What llguidance will be told to compile, if anything."""
        with _refused():
            return self._compiler(constraint.name).grammar(constraint.text)

    def prepare(self, constraint: Constraint) -> None:
        """Compile ahead, on any thread, what the next guide needs; RequestError for what cannot be read."""
        self._begin(constraint)

    def _begin(self, constraint: Constraint) -> Callable[[], Matcher]:
        with self._lock:
            found = self._kept.pop(constraint, None)
            if found is not None:
                self._kept[constraint] = found
                return found
        with _refused():
            found = self._compiler(constraint.name).compile(constraint.text)
        with self._lock:
            self._kept[constraint] = found
            while len(self._kept) > 1 and sum(map(held, self._kept)) > KEPT:
                del self._kept[next(iter(self._kept))]
        return found

    def __call__(self, constraint: Constraint, ends: frozenset[int]) -> Guide:
        """A guide at the start of a text; RequestError where no text can be written."""
        guide = Guide(self._begin(constraint)(), self._vocab, ends, self._pool)
        if guide.over or not guide.masks([()]).any():
            message = f"constraint {constraint.name!r} lets no text begin that the model's tokens can write"
            raise RequestError(f"{message}; correct {constraint.text!r:.60}.")
        return guide


def held(constraint: Constraint) -> int:
    """Bytes that it may take while it is kept, with all that its texts make of it."""
    return _EACH + _CHARACTER * len(constraint.text)


@contextmanager
def _refused() -> Iterator[None]:
    """An unknown name or option, or a tokenizer that cannot be read, is the request's error."""
    try:
        yield
    except RequestError:
        raise
    except ForerunError as problem:
        raise RequestError(str(problem)) from problem


def within(name: str, text: str, most: int) -> str:
    """The text of a constraint; RequestError where it is too long."""
    if len(text) > most:
        message = f"constraint {name!r} has {len(text)} characters and the limit is {most}"
        raise RequestError(f"{message}; make it smaller, or raise the limit with {name}:most={len(text)}.")
    return text


def listed(name: str, text: str) -> list[bytes]:
    """Words with commas between, or a JSON list of them; RequestError where there is none."""
    words: Any = text.split(",")
    if text.lstrip().startswith("["):
        try:
            words = json.loads(text)
        except ValueError:
            words = []
    if not words or not all(isinstance(word, str) and word for word in words):
        raise RequestError(f"constraint {name!r} got {text!r:.40}; give texts with commas between, or a JSON list.")
    return [word.encode(errors="surrogatepass") for word in words]
