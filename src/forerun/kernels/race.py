"""Draws as races: token x arrives after an exponential time with rate p(x), and the first one to arrive is drawn.

The times at rate 1 are made of a key and the token's id alone, so races with one key are coupled (2408.07978, Gumbel
sampling): who wins under q wins under p as well with a chance of at least (1 - d) / (1 + d), d their total variation
distance, and who arrives next is drawn without replacement. The arithmetic is of whole numbers and of single float32
operations, so it finds the same bits in PyTorch on any device and in csrc/race.inl.
Does not: resolve chances below 1e-9, where the least of the times begins to tell.
"""

from collections.abc import Sequence

import numpy as np
import torch

from forerun.host import send
from forerun.kernels import native
from forerun.types import Dist

_WORD = 0xFFFFFFFF
_HALVING = 0.6931471824645996  # log(2) in float32
_ODD = (1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0)  # of the series of atanh


def words(key: int) -> tuple[int, int]:
    """The two halves of a key."""
    return key & _WORD, key >> 32 & _WORD


def times(keys: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """When tokens `ids`, int64 [n], arrive at rate 1, for each key: float32 [keys, n], exponential."""
    first, second = send([words(key) for key in keys], ids.device).t()[:, :, None]
    h = ids * 0x9E3779B9 + first & _WORD
    h = (h ^ h >> 16) * 0x21F0AAAD & _WORD
    h = (h ^ h >> 15 ^ second) * 0x735A2D97 & _WORD
    h = (h ^ h >> 15) * 0x846CA68B & _WORD
    h = (h ^ h >> 16) >> 1 | 1
    halvings = 127 + 30 - ((h & ~(h >> 1)).float().view(torch.int32) >> 23)
    x = ((0x7FFFFFFF - (h << halvings.long())).float() + 0.5) * 2.0**-31
    s = x / (2 - x)
    t, r = s * s, torch.zeros_like(s)
    for number in _ODD:
        r = r * t + np.float32(number).item()
    r = r * s
    found: torch.Tensor = halvings.float() * _HALVING + (r + r)
    return found


def first(p: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    """Who wins each race: p [n, vocab] -> int64 [n, 1]; it waits for no device."""
    scores = p.float() / times(keys, torch.arange(p.shape[-1], device=p.device))
    winners: torch.Tensor = scores.argmax(-1, keepdim=True)
    return winners


def winner(p: Dist, key: int) -> int:
    """The token drawn from p."""
    known = p.far.drawn(key) if p.far is not None else None
    if known is not None:
        return known
    module, probs = native.load(), np.ascontiguousarray(p.probs, np.float32)
    if module is not None:
        return int(module.race(probs, *words(key), p.ids))
    ids = torch.from_numpy(p.ids) if p.ids is not None else torch.arange(len(probs))
    at = int((torch.from_numpy(probs) / times([key], ids)[0]).argmax())
    return int(ids[at])
