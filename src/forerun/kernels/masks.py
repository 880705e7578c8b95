"""The likeliest token of a row of logits that a constraint's mask allows.

A row of 200,000 tokens is a megabyte, as bytes a mask of it another fifth: the compiled form (csrc/masks.inl) reads
the mask as bits, and of the row the parts where a token is allowed.
Does not: know what a constraint is.
"""

import numpy as np
import numpy.typing as npt

from forerun.kernels import native
from forerun.types import Bools, Floats

Bits = npt.NDArray[np.uint8]  # a token each, the lowest of a byte first


def likeliest(logits: Floats, bits: Bits) -> int | None:
    """Of a row [vocab] and bits [vocab / 8, rounded up], the first of several; None where no token is left."""
    module = native.load()
    if module is None or logits.dtype != np.float32:
        return plain(logits, bits)
    token: int = module.likeliest(logits, bits)
    return token if token >= 0 else None


def plain(logits: Floats, bits: Bits) -> int | None:
    """The same in numpy."""
    ids = np.flatnonzero(unpacked(bits, len(logits)))
    left = logits[ids]
    best = int(left.argmax()) if len(ids) else 0
    return int(ids[best]) if len(ids) and left[best] > -np.inf else None


def packed(mask: Bools) -> Bits:
    """A mask [vocab] as bits."""
    return np.packbits(mask, bitorder="little")


def unpacked(bits: Bits, vocab: int) -> Bools:
    """Bits as a mask [vocab]."""
    every: Bools = np.unpackbits(bits, bitorder="little")[:vocab].view(np.bool_)
    return every
