"""What a constraint is: it reads what a request says a text must be, and says at every place which tokens may follow.

`self` holds options and what all requests share (a vocabulary). The matcher that `compile` begins is one request's.
"""

import json
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, ClassVar

from forerun.errors import ForerunError, RequestError
from forerun.guide import Guide, Matcher
from forerun.member import Member
from forerun.types import Constraint, Setup

KEPT = 32  # compiled constraints, and compilers


class Compiler(Member):
    """One kind of constraint."""

    example: ClassVar[str]  # what it can read, for the contract tests
    words: ClassVar[tuple[str, ...]] = ("a", "b", "c")  # tokens by which that can be written, and broken

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def compile(self, text: str) -> Callable[[], Matcher]:
        """What begins a text under this constraint. RequestError, in one sentence, for what cannot be read."""


class Guides:
    """Guides for the requests of one engine; what was compiled last is kept, as requests come with the same schema."""

    def __init__(self, compiler: Callable[[str], Compiler], vocab: int) -> None:
        self._vocab = vocab
        self._pool = ThreadPoolExecutor(1, "forerun-masks")  # its thread starts when it is first needed
        self._compiler = lru_cache(maxsize=KEPT)(compiler)
        self._begin = lru_cache(maxsize=KEPT)(self._compiled)

    def _compiled(self, constraint: Constraint) -> Callable[[], Matcher]:
        try:
            return self._compiler(constraint.name).compile(constraint.text)
        except RequestError:
            raise
        except ForerunError as problem:  # an unknown name or option, a tokenizer that cannot be read
            raise RequestError(str(problem)) from problem

    def prepare(self, constraint: Constraint) -> None:
        """Compile ahead, on any thread, what the next guide needs; RequestError for what cannot be read."""
        self._begin(constraint)

    def __call__(self, constraint: Constraint, ends: frozenset[int]) -> Guide:
        """A guide at the start of a text; RequestError where no text can be written."""
        guide = Guide(self._begin(constraint)(), self._vocab, ends, self._pool)
        if guide.over or not guide.masks([()]).any():
            message = f"constraint {constraint.name!r} lets no text begin that the model's tokens can write"
            raise RequestError(f"{message}; correct {constraint.text!r:.60}.")
        return guide


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
