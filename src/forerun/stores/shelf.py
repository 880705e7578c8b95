"""What a drafter keeps over restarts: token sequences by scope, in one folder that one engine holds at a time.

A save writes beside the file and renames, so a kill leaves the last whole one. What cannot be read is refused before
anything is written.
Does not: merge what two engines learn; each needs a folder of its own.
"""

import fcntl
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from forerun.errors import ConfigError
from forerun.stores import tokenfile
from forerun.stores.tokenfile import Tokens

Texts = Mapping[str, Sequence[Tokens]]  # scope -> sequences, the oldest first

_LOG = logging.getLogger("forerun")
NAME, LOCK, KIND = "draft-store.tokens", "lock", "draft store"
REMEDY = "use another folder, or delete the file to begin anew"
EVERY = 5.0  # seconds between saves


class Shelf:
    """One folder; nothing is touched before `open`."""

    def __init__(self, folder: Path, tokenizer: Callable[[], str]) -> None:
        self.folder, self.opened = folder, False
        self._tokenizer, self._mark = tokenizer, ""
        self._saved, self._turn = monotonic(), threading.Lock()

    def open(self, room: int) -> Texts:
        """Take the folder, and what it holds; ConfigError where somebody else has it or the file is unfit."""
        if self.opened:
            message = f"draft_store {str(self.folder)!r} is kept by another drafter of this engine"
            raise ConfigError(f"{message}; hold only one that learns, or leave the store out.")
        free = weakref.finalize(self, os.close, _take(self.folder))
        self.opened, self._mark = True, self._tokenizer()
        try:
            return self._load(room)
        except ConfigError:
            free()
            raise

    def _load(self, room: int) -> Texts:
        for left in self.folder.glob(f"{NAME}.*.part"):  # a write that was killed
            left.unlink()
        if not self._path.exists():
            return {}
        table, arrays = tokenfile.read(self._path, KIND, self._mark, REMEDY)
        size = sum(table["sizes"])
        if size > room:
            message = f"{str(self._path)!r} holds {size} tokens and the drafter has room for {room}"
            raise ConfigError(f"{message}; give it room={size}, or {REMEDY}.")
        texts: dict[str, list[Tokens]] = {}
        for scope, array in zip(table["scopes"], arrays, strict=True):
            texts.setdefault(scope, []).append(array.astype(np.int32))
        return texts

    @property
    def _path(self) -> Path:
        return self.folder / NAME

    def save(self, texts: Texts) -> None:
        """Write everything, now."""
        scopes = [scope for scope, sequences in texts.items() for _ in sequences]
        facts = {"tokenizer": self._mark, "scopes": scopes}
        arrays = [array for sequences in texts.values() for array in sequences]
        with self._turn:
            tokenfile.write(self._path, KIND, facts, arrays, "make room, or name another folder")
        self._saved = monotonic()

    def save_soon(self, texts: Callable[[], Texts]) -> None:
        """Save beside the engine's work, unless that was done within the last seconds."""
        if monotonic() - self._saved < EVERY or self._turn.locked():
            return
        self._saved = monotonic()
        threading.Thread(target=self.try_save, args=(texts(),), name="forerun-shelf", daemon=True).start()

    def try_save(self, texts: Texts) -> None:
        """Save, or say in the log why that cannot be done."""
        try:
            self.save(texts)
        except ConfigError as problem:  # the old file stays, and decoding goes on
            _LOG.warning("what was learned is not kept: %s", problem)


def _take(folder: Path) -> int:
    """The folder's lock, held until the file is closed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what others wrote is nobody else's to read
        file = os.open(folder / LOCK, os.O_CREAT | os.O_WRONLY, 0o600)
    except OSError as problem:
        message = f"draft_store {str(folder)!r} cannot be used ({problem.strerror})"
        raise ConfigError(f"{message}; name a folder that can be written to.") from problem
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(file)
        message = f"draft_store {str(folder)!r} is in use by another engine"
        raise ConfigError(f"{message}; stop that one, or use another folder.") from problem
    return file
