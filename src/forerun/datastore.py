"""`forerun datastore build`: text files -> one datastore for the drafters that retrieve from a corpus.

With `dense` the target reads the texts, in windows, and the file holds where its hidden states lie.
Does not: fetch texts; split files into documents: each file is one, and nothing is continued across two.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError
from forerun.host import fetch
from forerun.kernels.suffixes import END, build
from forerun.models.contract import Model
from forerun.models.load import load_model
from forerun.models.spelling import Speller
from forerun.models.tokenizer import Tokenizer
from forerun.stores import tokenfile
from forerun.stores.corpus import KIND
from forerun.stores.dense import LAYER, dense_of, fit, index_of
from forerun.stores.tokenfile import Tokens
from forerun.types import Floats, Work

DIMS = 64  # of a projected state
WINDOW = 512  # tokens that are read together
SAMPLE = 64  # windows of which the projection is made

Window = tuple[int, int]  # places of its first token, and behind its last


def make(files: Sequence[Path], model: str, out: Path) -> dict[str, Any]:
    """Write the datastore; how large it became."""
    documents, tokens, facts = _read(files, model)
    tokenfile.write(out, KIND, facts, [tokens, build(tokens)], "name another file with --out")
    return _size(documents, tokens, out)


def make_dense(files: Sequence[Path], model: str, out: Path, dims: int = DIMS) -> dict[str, Any]:
    """Write the dense datastore; how large it became."""
    index_of(1)  # before anything takes long
    documents, tokens, facts = _read(files, model)
    target = load_model(model)
    reader, begin = _Reader(target), tuple(Tokenizer.from_folder(model).encode("", bos=True))
    parts = list(windows(tokens, min(WINDOW, target.info.context_length) - len(begin)))
    sample = np.concatenate([reader.states(begin, tokens[a:b]) for a, b in parts[:: 1 + len(parts) // SAMPLE]])
    projection = fit(sample, min(dims, sample.shape[1]))
    read = ((np.arange(a, b), reader.states(begin, tokens[a:b])) for a, b in parts)
    dense_of(tokens, projection, read).write(out, facts)
    return _size(documents, tokens, out)


def _read(files: Sequence[Path], model: str) -> tuple[int, Tokens, dict[str, Any]]:
    """How many documents, their tokens, and what the file says of both."""
    tokenizer = Tokenizer.from_folder(model)
    documents = [tokenizer.encode(_text(file), bos=False) for file in files]
    if not any(documents):
        raise ConfigError("the files hold no text, so there is nothing to retrieve; name at least one that does.")
    tokens = np.array([token for document in documents if document for token in (*document, END)], np.int32)
    return len(documents), tokens, {"tokenizer": tokenfile.mark_of(Speller(tokenizer)), "model": model}


def _size(documents: int, tokens: Tokens, out: Path) -> dict[str, Any]:
    return {"documents": documents, "tokens": int((tokens != END).sum()), "bytes": out.stat().st_size}


def windows(tokens: Tokens, size: int) -> Iterator[Window]:
    """Pieces of at most `size` tokens of one document each."""
    start = 0
    for end in np.flatnonzero(tokens == END).tolist():
        yield from ((first, min(first + size, end)) for first in range(start, end, size))
        start = end + 1


class _Reader:
    """Reads texts, one at a time."""

    def __init__(self, target: Model) -> None:
        self._cache = ContiguousCache(ContiguousCache.Options(), target.info.layout, 1, target.info.context_length)
        self._runner = ModelRunner(target, self._cache)

    def states(self, begin: Sequence[int], tokens: Tokens) -> Floats:
        """Hidden states of the tokens behind a beginning, [tokens, hidden]."""
        work = (*begin, *tokens.tolist())
        slot, _ = self._cache.open(())
        self._cache.reserve(slot, len(work))
        output = self._runner.run([Work(slot, work, hidden=(LAYER,))])[0]
        self._cache.close(slot)
        states: Floats = fetch(output.hidden[LAYER][len(begin) :].float())
        return states


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"cannot read {str(file)!r} ({problem.strerror}); name files that exist.") from problem
    except UnicodeDecodeError as problem:
        message = f"{str(file)!r} is not UTF-8 (at byte {problem.start})"
        raise ConfigError(f"{message}; convert it, as with iconv -t UTF-8.") from problem
