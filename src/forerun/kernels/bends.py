"""Logits bent by penalties for what a text says already, biases and bans.

`repetition_penalty` divides positive logits of all tokens that were read or written and multiplies negative ones
(1909.05858); presence and frequency count what was written alone. The compiled form (csrc/module.cpp) reads the text as
Python has it, in a tenth of the time that it takes to make a tensor of a short one and to look its tokens up.
Does not: know which tokens a text forbids, or of constraints (`sampling.py`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forerun.host import send
from forerun.kernels import native
from forerun.types import Sampling

Tokens = Sequence[int]


def bend(
    logits: torch.Tensor, s: Sampling, text: Tokens, prompt_length: int, paths: Sequence[Tokens], bans: Sequence[Tokens]
) -> torch.Tensor:
    """Logits [n, vocab] in float32 or float64 -> the same in memory of their own.

    A row follows the text and a path of its own, and has bans of its own; `bans` are none or as many as rows.
    """
    module = native.load_for(logits)
    if module is None:
        return plain(logits, s, text, prompt_length, paths, bans)
    rows, out = logits.contiguous(), torch.empty(logits.shape)
    module.bend(rows.data_ptr(), *rows.shape, asked(s, text, prompt_length), paths, bans, out.data_ptr())
    return out


def asked(s: Sampling, text: Tokens, prompt_length: int) -> tuple[Any, ...]:
    """What the compiled form is told of a sampling and a text."""
    penalties = s.repetition_penalty, s.presence_penalty, s.frequency_penalty
    return *penalties, text if s.penalizes else (), prompt_length, *s.biases, s.allowed


def plain(
    logits: torch.Tensor, s: Sampling, text: Tokens, prompt_length: int, paths: Sequence[Tokens], bans: Sequence[Tokens]
) -> torch.Tensor:
    """The same in PyTorch, on any device: no more of a vocabulary is changed than need be."""
    bent = logits.clone()
    if s.penalizes:
        _penalize(bent, s, np.asarray(text, np.int64), prompt_length, paths)
    ids, biases = s.biases
    if len(ids):
        bent[:, send(ids, bent.device)] += send(biases, bent.device, bent.dtype)
    for row, banned in enumerate(bans):
        if banned:
            bent[row].index_fill_(0, send(banned, bent.device), -torch.inf)
    if s.allowed is not None:
        allowed = torch.zeros(bent.shape[-1], dtype=torch.bool, device=bent.device)
        allowed.index_fill_(0, send(s.allowed, bent.device), value=True)
        bent.masked_fill_(~allowed, -torch.inf)
    return bent


def _penalize(logits: torch.Tensor, s: Sampling, text: np.ndarray, prompt_length: int, paths: Sequence[Tokens]) -> None:
    """In place."""
    if s.repetition_penalty != 1:
        deepest, again = max(map(len, paths)), text[-1]  # to say a token twice is harmless
        ends = np.array([[*path, *(again,) * (deepest - len(path))] for path in paths], np.int64)
        at = send(np.concatenate([np.broadcast_to(text, (len(paths), len(text))), ends], 1), logits.device)
        some = logits.gather(1, at)
        logits.scatter_(1, at, torch.where(some > 0, some / s.repetition_penalty, some * s.repetition_penalty))
    if s.presence_penalty or s.frequency_penalty:
        written = [np.concatenate([text[prompt_length:], np.asarray(path, np.int64)]) for path in paths]
        every = np.sort(np.concatenate(written))
        ids = every[np.diff(every, prepend=-1) > 0]
        counts = [np.bincount(np.searchsorted(ids, row), minlength=len(ids)) for row in written]
        where, count = send(ids, logits.device), send(np.stack(counts), logits.device, logits.dtype)
        some = logits.index_select(1, where) - s.presence_penalty * (count > 0) - s.frequency_penalty * count
        logits.index_copy_(1, where, some)
