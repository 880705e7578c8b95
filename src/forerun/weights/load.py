"""Read safetensors, single or sharded, memory-mapped: a tensor costs memory once somebody touches it.

Does not: read pickles, follow an index out of its folder, or believe a header that the file does not bear out.
"""

import ctypes
import json
import mmap
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from forerun.errors import ModelError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TEXT_LIMIT = 64 * 2**20  # bytes of a JSON file; the largest real index has some ten


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    nbytes: int


class Tensors(Protocol):
    """Named tensors to build a model from."""

    folder: Path
    entries: dict[str, Entry]

    def read(self, name: str) -> torch.Tensor: ...
    def release(self, name: str) -> None: ...


class Checkpoint:
    """The tensors of one folder by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        for file, names in _files(folder).items():
            found = _header(file)
            absent = sorted(names - found.keys()) if names is not None else []
            if absent:
                raise ModelError(f"{file} lacks {', '.join(absent)}, which the index promises; download it again.")
            self.entries |= {name: found[name] for name in (found if names is None else names)}

    def read(self, name: str) -> torch.Tensor:
        """A tensor that is a view of the file."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            known = ", ".join(sorted(DTYPES))
            raise ModelError(f"tensor {name!r} is stored as {entry.dtype}; convert the checkpoint to one of {known}.")
        if not entry.nbytes:
            return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        count = entry.nbytes // DTYPES[entry.dtype].itemsize
        flat = torch.frombuffer(self._map(entry.file), dtype=DTYPES[entry.dtype], count=count, offset=entry.start)
        return flat.view(entry.shape)

    def release(self, name: str) -> None:
        """Give the pages of a tensor back to the system; they are read from the file again if they are touched."""
        entry = self.entries[name]
        start = entry.start - entry.start % mmap.PAGESIZE
        if entry.file in self._maps and hasattr(mmap, "MADV_DONTNEED"):
            self._maps[entry.file].madvise(mmap.MADV_DONTNEED, start, entry.start + entry.nbytes - start)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as stream:
                self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[file]


def trim() -> None:
    """Give freed memory back to the system: glibc keeps what short-lived copies of large tensors took."""
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file of a model folder."""
    try:
        if file.stat().st_size > TEXT_LIMIT:
            raise ModelError(f"{file} is larger than {TEXT_LIMIT >> 20} MiB; it is not what its name says.")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON ({error}); download it again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} holds a {type(found).__name__}, not an object; download it again.")
    return found


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """The files to read, and which tensors each is to hold; None: all that it has."""
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    if (folder / INDEX).is_file():
        return _shards(folder, read_json(folder / INDEX).get("weight_map"))
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        message = (
            f"{folder} holds its weights as {pickles[0]}; forerun reads safetensors only, because a pickle can run"
        )
        raise ModelError(f"{message} code. Convert it with save_pretrained(folder, safe_serialization=True).")
    raise ModelError(f"{folder} has no weights; put {SINGLE} or {INDEX} and its shards there.")


def _shards(folder: Path, weights: object) -> dict[Path, set[str] | None]:
    if not isinstance(weights, dict) or not weights:
        raise ModelError(f"{folder / INDEX} has no 'weight_map' from tensor to file; download it again.")
    shards: dict[Path, set[str] | None] = {}
    for name, file in weights.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            message = f"{folder / INDEX} places {name!r} in {file!r}"
            raise ModelError(f"{message}; only .safetensors files in the same folder are read. Correct the index.")
        names = shards.setdefault(folder / file, set())
        if names is not None:
            names.add(name)
    missing = sorted(file.name for file in shards if not file.is_file())
    if missing:
        raise ModelError(f"{folder} lacks the shards {', '.join(missing)}; download them.")
    return shards


def _header(file: Path) -> dict[str, Entry]:
    """Entries of one file, after the safetensors library has checked that sizes, shapes and offsets agree."""
    try:
        with safe_open(file, framework="pt"):
            pass
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            table = json.loads(stream.read(size))
        table.pop("__metadata__", None)
        return {name: _entry(file, 8 + size, spec) for name, spec in table.items()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file} is not a sound safetensors file ({error}); download it again.") from error


def _entry(file: Path, base: int, spec: dict[str, Any]) -> Entry:
    start, end = spec["data_offsets"]
    return Entry(file, spec["dtype"], tuple(spec["shape"]), base + start, end - start)
