"""Pairs of p and q to judge by: made up, or recorded from a target and its drafter on prompts.

A pair is two functions from what was drafted so far to the law of the next token.
Does not: train, or choose prompts of its own; these are the benchmark's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

import numpy as np

from forerun.bench.verify import made_up
from forerun.bench.workloads import encode, load
from forerun.errors import ConfigError
from forerun.models.load import folder_of, load_model
from forerun.models.tokenizer import Tokenizer
from forerun.testing.reference import Reference
from forerun.types import Floats, Sampling

Path = tuple[int, ...]
LAWS = ("zipf", "dirichlet")
_ALPHA, _COMMON = 0.3, 0.5  # of the Dirichlet laws, and what p and q share of them
_SHORTEST = 8  # tokens that a recorded context has at least
_CATEGORIES = ("story", "chat", "code")


@dataclass(frozen=True)
class Pair:
    """P and q after what was drafted, [vocab]."""

    p: Callable[[Path], Floats]
    q: Callable[[Path], Floats]


def toys(law: str, vocab: int, count: int) -> list[Pair]:
    """Random pairs, another one after every path; the same every time."""

    def pair(number: int) -> Pair:
        @lru_cache(maxsize=4096)
        def rows(path: Path) -> tuple[Floats, Floats]:
            rng = np.random.default_rng((number, vocab, *path))
            return made_up(vocab, rng) if law == "zipf" else _dirichlet(vocab, rng)

        return Pair(lambda path: rows(path)[0], lambda path: rows(path)[1])

    return [pair(number) for number in range(count)]


def _dirichlet(vocab: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    common, p, q = rng.dirichlet(np.full(vocab, _ALPHA), 3)
    return _COMMON * common + (1 - _COMMON) * p, _COMMON * common + (1 - _COMMON) * q


def recorded(model: str, sampling: Sampling, count: int) -> list[Pair]:
    """Pairs of the model and the drafter that its folder names, at `count` places of the benchmark's prompts."""
    target = load_model(model)
    companion = target.info.companion
    if companion is None:
        message = f"model {model!r} names no drafter, so there is no q to record"
        raise ConfigError(f"{message}; use --model reference, or a folder whose forerun.json names one.")
    p, q = Reference(target), Reference(load_model(companion))
    contexts = _contexts(Tokenizer.from_folder(folder_of(model)), target.info.context_length // 2, count)
    return [Pair(*(partial(_row, side, context, sampling) for side in (p, q))) for context in contexts]


def _row(side: Reference, context: Path, sampling: Sampling, path: Path) -> Floats:
    row: Floats = side.next(context, path, sampling).numpy()
    return row


def _contexts(tokenizer: Tokenizer, room: int, count: int) -> list[Path]:
    """Beginnings of prompts, taking turns among these."""
    items = encode(load(_CATEGORIES, count), tokenizer, room).items
    cuts: Iterator[Path] = (
        item.tokens[:end]
        for share in _shares(count)
        for item in items
        if (end := int(share * len(item.tokens))) >= _SHORTEST
    )
    return list(islice(cuts, count))


def _shares(count: int) -> Sequence[float]:
    """How much of a prompt is read: all of it first, then halves, thirds."""
    return [part / parts for parts in range(1, count + 1) for part in range(parts, 0, -1)]
