"""What a slot holds, copied to the host and back, to the bit.

Does not: decide when; keep a copy after it was put back.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from forerun.caches.contract import Cache
from forerun.types import Segment


class Copy(NamedTuple):
    """The committed tokens of a slot, and what is kept of them in every layer."""

    tokens: tuple[int, ...]
    strips: list[torch.Tensor]  # [heads, tokens, width], in the order of `_strips`


def copy_out(cache: Cache, slot: int, tokens: Sequence[int]) -> Copy:
    """A slot's committed entries, which are these tokens' keys and values."""
    places = _places(cache, Segment(slot, 0, 0, len(tokens), 0, None))
    return Copy(tuple(tokens), [strip[:, places].cpu() for strip in _strips(cache)])


def copy_in(cache: Cache, slot: int, copy: Copy) -> bool:
    """Put back what the slot does not hold yet; False, with nothing changed, where there is no room."""
    held = cache.length(slot)
    rest = copy.tokens[held:]
    if not rest:
        return True
    if not cache.reserve(slot, len(rest)):
        return False
    segment = Segment(slot, 0, len(rest), held, 0, None)
    places = _places(cache, segment)[held:]
    for strip, kept in zip(_strips(cache), copy.strips, strict=True):
        strip[:, places] = kept[:, held:].to(strip.device)
    cache.advance((segment,))
    cache.keep(slot, rest, range(len(rest)))
    return True


def _places(cache: Cache, segment: Segment) -> torch.Tensor:
    """The rows of a segment's entries, in order."""
    runs = [torch.arange(first, first + count) for first, count in cache.runs(segment)]
    return torch.cat(runs).to(cache.rows.keys[0].device)


def _strips(cache: Cache) -> Iterator[torch.Tensor]:
    rows = cache.rows
    for parts in (rows.keys, rows.values, rows.key_scales, rows.value_scales):
        yield from (part for part in parts if part.numel())
