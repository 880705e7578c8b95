"""Every error forerun raises on purpose; each message is one sentence with a remedy.

ForerunError
├── ConfigError     an unknown option, method or key, or a combination that cannot work
├── ModelError      a model folder, its weights or its tokenizer cannot be used
├── RequestError    one request asks for what cannot be done; the others are not touched
├── CacheError      a cache is full, or its books do not balance
├── DraftError      a drafter returned something that is not a draft; decoding goes on without it
└── TrainError      training or exporting a model cannot go on; what was saved before is intact
"""

import difflib
from collections.abc import Iterable
from logging import Logger
from traceback import format_tb


class ForerunError(Exception):
    """Base of all errors that forerun raises on purpose."""


class ConfigError(ForerunError):
    """An unknown option, method or key, or a combination that cannot work."""


class ModelError(ForerunError):
    """A model folder, its weights or its tokenizer cannot be used."""


class RequestError(ForerunError):
    """One request asks for what cannot be done."""


class CacheError(ForerunError):
    """A cache is full, or its books do not balance."""


class DraftError(ForerunError):
    """A drafter returned something that is not a draft."""


class TrainError(ForerunError):
    """Training or exporting a model cannot go on."""


def unknown(subject: str, noun: str, got: str, known: Iterable[str]) -> str:
    """The one sentence for a name that does not exist: what was got, the nearest, and all there are."""
    names = sorted(known)
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listing = f" {noun.capitalize()}s: {', '.join(names)}." if names else f" It has no {noun}s."
    return f"{subject} has no {noun} {got!r}{hint}{listing}"


def log_bug(log: Logger, what: str, problem: BaseException) -> None:
    """Where something unforeseen was raised; what it says, which may quote a request, at the level DEBUG only."""
    log.error("%s with %s\n%s", what, type(problem).__name__, "".join(format_tb(problem.__traceback__)))
    log.debug("%s: %s", what, problem)
