"""Constraints' masks as bits: the likeliest token of a row of logits that one allows, and which tokens these are.

A row of 200,000 tokens is a megabyte, as bytes a mask of it another fifth: the compiled form (csrc/masks.inl) reads
the mask as bits, and of the row the parts where a token is allowed.
Does not: know what a constraint is.
"""

import numpy as np
import numpy.typing as npt

from forerun.kernels import native
from forerun.types import Bools, Floats, Ints

Bits = npt.NDArray[np.uint8]  # a token each, the lowest of a byte first; behind the vocabulary's none is set


def likeliest(logits: Floats, bits: Bits) -> int | None:
    """Of a row [vocab] and bits [vocab / 8, rounded up], the first of several; None where no token is left."""
    module = native.load()
    if module is None or logits.dtype != np.float32:
        return plain(logits, bits)
    token: int = module.likeliest(logits, bits)
    return token if token >= 0 else None


def plain(logits: Floats, bits: Bits) -> int | None:
    """The same in numpy."""
    allowed = np.flatnonzero(unpacked(bits, len(logits)))
    left = logits[allowed]
    best = int(left.argmax()) if len(allowed) else 0
    return int(allowed[best]) if len(allowed) and left[best] > -np.inf else None


def count(bits: Bits) -> int:
    """How many tokens are allowed."""
    module = native.load()
    return int(np.bitwise_count(bits).sum()) if module is None else int(module.count(bits))


def ids(bits: Bits) -> Ints:
    """The tokens that are allowed."""
    module = native.load()
    if module is None:
        return np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    found: Ints = np.empty(module.count(bits), np.int64)
    module.places(bits, found.ctypes.data)
    return found


def forbidden(bits: Bits, vocab: int) -> Ints:
    """The others."""
    others = ~bits
    if vocab % 8:
        others[-1] &= (1 << vocab % 8) - 1
    return ids(others)


def packed(mask: Bools) -> Bits:
    """A mask [vocab] as bits."""
    return np.packbits(mask, bitorder="little")


def unpacked(bits: Bits, vocab: int) -> Bools:
    """Bits as a mask [vocab]."""
    every: Bools = np.unpackbits(bits, bitorder="little")[:vocab].view(np.bool_)
    return every
