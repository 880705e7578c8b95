"""A file of packed weights: named pieces of bytes as they lie in memory, and a table of them at its end.

First 40 bytes: a mark, the format version, and where the table lies, how long it is and its checksum, little-endian.
Then the pieces, each from a page on; then the table, JSON. Every 4 MiB of a piece and the table have an XXH64, which is
checked whenever they are read: while they are in the processor's cache it costs a tenth of what reading them does.
Does not: know what the pieces mean.
"""

import ctypes
import json
import mmap
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from forerun.errors import ModelError
from forerun.kernels import native

NAME = "model.packed"
MARK, VERSION = b"forerun\0", 1
BEGIN = struct.Struct("<8sQQQQ")
PAGE = 4096
BLOCK = 4 << 20  # bytes that have one checksum
TABLE_MAX = 1 << 30
THREADS = 8  # at most; more do not read faster
AGAIN = "copy it again, or make it again with forerun quantize"


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one array lies; `shape` and `kind` are its meaning, not its bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    checks: tuple[str, ...]  # of every BLOCK

    def blocks(self) -> Iterator[tuple[int, int, str]]:
        """First byte, number of bytes and checksum of every block."""
        for i, check in enumerate(self.checks):
            yield i * BLOCK, min(BLOCK, self.nbytes - i * BLOCK), check


def checksum(address: int, nbytes: int) -> str:
    """XXH64 of memory."""
    module: Any = native.load()
    return f"{module.xxh64(address, nbytes):016x}"


def checksum_of(content: bytes) -> str:
    """XXH64 of bytes."""
    return checksum(ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value or 0, len(content))


def memory(address: int, nbytes: int) -> memoryview:
    """Bytes at an address, which must outlive the view."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


class Writer:
    """Writes pieces one behind the other; the file is whole once `finish` has run."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._pieces = file, list[Piece]()
        file.write(bytes(PAGE))

    def add(self, name: str, kind: str, shape: tuple[int, ...], span: tuple[int, int]) -> None:
        """A piece whose address and number of bytes are `span`."""
        address, nbytes = span
        firsts = range(0, nbytes, BLOCK)
        checks = tuple(checksum(address + first, min(BLOCK, nbytes - first)) for first in firsts)
        offset = self._file.tell()
        self._pieces.append(Piece(name, kind, shape, offset, nbytes, checks))
        if nbytes:
            self._file.write(memory(address, nbytes))
        self._file.write(bytes(-self._file.tell() % PAGE))

    def finish(self, facts: dict[str, Any]) -> int:
        """Write the table, with `facts` beside the pieces, and then where it is; returns the bytes of all pieces."""
        table = json.dumps({**facts, "pieces": [asdict(piece) for piece in self._pieces]}).encode()
        at = self._file.tell()
        self._file.write(table)
        self._file.seek(0)
        module: Any = native.load()
        check = int(checksum_of(table), 16) if module else 0
        self._file.write(BEGIN.pack(MARK, VERSION, at, len(table), check))
        self._file.flush()
        os.fsync(self._file.fileno())
        return sum(piece.nbytes for piece in self._pieces)


class PackedFile:
    """An open file of packed weights; its table has been checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.facts = _table(path, file)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            pieces = [_piece(**row) for row in self.facts.pop("pieces")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path} cannot be read ({error}); {AGAIN}.") from error
        self.pieces = {piece.name: piece for piece in pieces}
        self._wanted: list[tuple[Piece, int]] = []

    def want(self, name: str, kind: str, shape: tuple[int, ...], span: tuple[int, int]) -> None:
        """Have `read` put a piece of this kind, shape and size where `span` says; 0: check its bytes only."""
        piece = self.pieces.get(name)
        blocks = -(-span[1] // BLOCK)
        if piece is None or (piece.kind, piece.shape, piece.nbytes, len(piece.checks)) != (
            kind,
            shape,
            span[1],
            blocks,
        ):
            got = f"{piece.kind} {list(piece.shape)} in {piece.nbytes} bytes" if piece else "missing"
            message = f"{self.path}: {name} is {got} and should be {kind} {list(shape)} in {span[1]} bytes"
            raise ModelError(f"{message}; {AGAIN}.")
        self._wanted.append((piece, span[0]))

    def view(self, name: str) -> memoryview:
        """A piece as a view of the file: it costs memory where it is touched."""
        piece = self.pieces[name]
        return memoryview(self._map)[piece.offset : piece.offset + piece.nbytes]

    def read(self) -> None:
        """Put all that is wanted into its place, several threads together, and check it."""
        tasks = [
            (piece, first, size, check, address)
            for piece, address in self._wanted
            for first, size, check in piece.blocks()
        ]
        self._wanted = []
        count = min(THREADS, os.cpu_count() or 1)
        with self.path.open("rb") as file, ThreadPoolExecutor(count) as threads:
            for _ in threads.map(lambda task: self._block(file.fileno(), *task), tasks):
                pass

    def _block(self, file: int, piece: Piece, first: int, size: int, check: str, address: int) -> None:
        scratch = None if address else ctypes.create_string_buffer(size)
        to = ctypes.addressof(scratch) if scratch is not None else address + first
        room, done = memory(to, size), 0
        while done < size:
            got = os.preadv(file, [room[done:]], piece.offset + first + done)
            if not got:
                raise ModelError(f"{self.path} ends within {piece.name}; {AGAIN}.")
            done += got
        if checksum(to, size) != check:
            raise ModelError(f"{self.path}: the bytes of {piece.name} are not those that were written; {AGAIN}.")


def _piece(shape: list[int], checks: list[str], **row: Any) -> Piece:  # noqa: ANN401 - JSON
    return Piece(shape=tuple(shape), checks=tuple(checks), **row)


def _table(path: Path, file: BinaryIO) -> dict[str, Any]:
    begin = file.read(BEGIN.size)
    if len(begin) < BEGIN.size or begin[: len(MARK)] != MARK:
        raise ModelError(f"{path} is not a file of packed weights; {AGAIN}.")
    _, version, at, size, check = BEGIN.unpack(begin)
    if version != VERSION:
        message = f"{path} has format version {version}, and this forerun reads version {VERSION}"
        raise ModelError(f"{message}; make it again with this forerun's quantize.")
    total = os.fstat(file.fileno()).st_size
    if at + size != total or size > TABLE_MAX:
        raise ModelError(f"{path} has {total} bytes and should have {at + size}; {AGAIN}.")
    file.seek(at)
    table = file.read(size)
    if int(checksum_of(table), 16) != check:
        raise ModelError(f"{path}: the bytes of its table are not those that were written; {AGAIN}.")
    found: dict[str, Any] = json.loads(table)
    return found
