"""Files of token ids: a table, and arrays of int32 behind it, with a checksum, a version and the tokenizer's mark.

First 64 bytes: a mark, the format version, the sizes of the table and of the arrays, and the checksum (BLAKE2b) of
both; then the table, JSON, and the arrays from a multiple of 64 on. Every way in which a file can be unfit is one
sentence.
Does not: know what the arrays mean; compress.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.errors import ConfigError
from forerun.files import write_whole
from forerun.types import Spelling

Tokens = npt.NDArray[np.int32]
MARK, VERSION = b"tokens\0\0", 1
BEGIN = struct.Struct("<8sQQQ16s16x")
LINE = 64
TABLE_MAX = 1 << 28


def mark_of(spelling: Spelling) -> str:
    """What tells tokenizers apart: what each token writes."""
    digest = blake2b(digest_size=16)
    for piece in spelling.pieces:
        digest.update(repr(piece).encode())
    return digest.hexdigest()


def write(path: Path, kind: str, facts: Mapping[str, Any], arrays: Sequence[Tokens], remedy: str) -> None:
    """Write the whole file, or leave the one that is there as it is."""
    table = json.dumps({"kind": kind, **facts, "sizes": [len(array) for array in arrays]}).encode()
    table += b" " * (-len(table) % LINE)
    body = b"".join(array.astype("<i4").tobytes() for array in arrays)
    check = blake2b(table + body, digest_size=16).digest()
    write_whole(path, BEGIN.pack(MARK, VERSION, len(table), len(body), check) + table + body, remedy, ConfigError)


def read(path: Path, kind: str, tokenizer: str, remedy: str) -> tuple[dict[str, Any], list[Tokens]]:
    """Table and arrays of a sound file of this kind and tokenizer; the arrays are views of the mapped file."""
    try:
        whole = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as problem:
        raise ConfigError(f"cannot read {str(path)!r} ({problem.strerror}); {remedy}.") from problem
    table, body = _checked(str(path), whole, remedy)
    if table["kind"] != kind:
        raise ConfigError(f"{str(path)!r} is a {table['kind']} and no {kind}; {remedy}.")
    if tokenizer and table["tokenizer"] != tokenizer:
        raise ConfigError(f"{str(path)!r} was made with another tokenizer than this model's; {remedy}.")
    sizes, held = table["sizes"], body.view("<i4")
    ends = accumulate(sizes)
    return table, [held[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _checked(name: str, whole: npt.NDArray[np.uint8], remedy: str) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
    """The table and the bytes of all arrays."""
    begin = whole[: BEGIN.size].tobytes()
    if not begin.startswith(MARK[: max(len(begin), 1)]):
        raise ConfigError(f"{name!r} is no file of tokens; {remedy}.")
    if len(begin) < BEGIN.size:
        raise ConfigError(f"{name!r} ends after {len(begin)} bytes, before its table; {remedy}.")
    _, version, tabled, held, check = BEGIN.unpack(begin)
    if version != VERSION:
        message = f"{name!r} has format version {version} and this forerun reads version {VERSION}"
        raise ConfigError(f"{message}; upgrade forerun, or {remedy}.")
    if BEGIN.size + tabled + held != len(whole) or tabled > TABLE_MAX:
        raise ConfigError(f"{name!r} has {len(whole)} bytes and should have {BEGIN.size + tabled + held}; {remedy}.")
    rest = whole[BEGIN.size :]
    if blake2b(rest.data, digest_size=16).digest() != check:
        raise ConfigError(f"the bytes of {name!r} are not those that were written; {remedy}.")
    table: dict[str, Any] = json.loads(rest[:tabled].tobytes())
    return table, rest[tabled:]
