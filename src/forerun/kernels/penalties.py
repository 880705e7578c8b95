"""Logits after penalties for what a text says already: repetition, presence, frequency.

`repetition` divides positive logits of all tokens that were read or written and multiplies negative ones (1909.05858);
`presence` and `frequency` count what was written alone. The compiled form (csrc/module.cpp) reads the text as Python
has it, in a tenth of the time that it takes to make a tensor of a short one and to look its tokens up.
Does not: ban anything (`sampling.py`).
"""

from collections.abc import Sequence

import numpy as np
import torch

from forerun.host import send
from forerun.kernels import native
from forerun.types import Sampling


def penalize(
    logits: torch.Tensor, s: Sampling, text: Sequence[int], prompt_length: int, paths: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Logits [n, vocab] in float32 or float64, of rows that follow a text and a path each, in memory of their own."""
    module = native.load() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
    if module is None:
        return plain(logits, s, text, prompt_length, paths)
    rows, out = logits.contiguous(), torch.empty(logits.shape)
    asked = s.repetition_penalty, s.presence_penalty, s.frequency_penalty
    module.penalize(rows.data_ptr(), *rows.shape, text, prompt_length, paths, *asked, out.data_ptr())
    return out


def plain(
    logits: torch.Tensor, s: Sampling, text: Sequence[int], prompt_length: int, paths: Sequence[Sequence[int]]
) -> torch.Tensor:
    """The same in PyTorch, on any device: no more of a vocabulary is changed than the text's tokens."""
    logits, tokens = logits.clone(), np.asarray(text, np.int64)
    if s.repetition_penalty != 1:
        deepest, again = max(map(len, paths)), text[-1]  # to say a token twice is harmless
        ends = np.array([[*path, *(again,) * (deepest - len(path))] for path in paths], np.int64)
        at = send(np.concatenate([np.broadcast_to(tokens, (len(paths), len(tokens))), ends], 1), logits.device)
        some = logits.gather(1, at)
        logits.scatter_(1, at, torch.where(some > 0, some / s.repetition_penalty, some * s.repetition_penalty))
    if s.presence_penalty or s.frequency_penalty:
        written = [np.concatenate([tokens[prompt_length:], np.asarray(path, np.int64)]) for path in paths]
        every = np.sort(np.concatenate(written))
        ids = every[np.diff(every, prepend=-1) > 0]
        counts = [np.bincount(np.searchsorted(ids, row), minlength=len(ids)) for row in written]
        where, count = send(ids, logits.device), send(np.stack(counts), logits.device, logits.dtype)
        some = logits.index_select(1, where) - s.presence_penalty * (count > 0) - s.frequency_penalty * count
        logits.index_copy_(1, where, some)
    return logits
