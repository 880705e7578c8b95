"""Attention of a ragged pass: per segment, over what the cache returns, without copying keys or values.

Does not: pad, or repeat keys for grouped queries; the group is folded into the query rows.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from forerun.types import Pass, Segment


@dataclass(frozen=True, slots=True)
class View:
    """What the rows of one segment see of the keys that the cache returns for it."""

    segment: Segment
    start: int  # keys before this one are out of every row's window
    bias: torch.Tensor | None  # [count, keys - start], 0 or -inf; None: everything, or causal
    causal: bool


def views(work: Pass, window: int | None, dtype: torch.dtype) -> list[View]:
    """One view per segment, for layers that see `window` positions back (their own included), or everything."""
    return [_view(s, window, dtype, work.tokens.device) for s in work.segments]


def _view(s: Segment, window: int | None, dtype: torch.dtype, device: torch.device) -> View:
    keys = s.past + s.base + s.rows
    narrow = window is not None and keys > window
    settled = s.past if s.mask is not None else s.past + s.base  # the first row stands here or later
    start = max(0, settled - window + 1) if narrow and window is not None else 0
    if s.mask is None and s.rows == 1:
        return View(s, start, None, causal=False)
    if s.mask is None and not narrow and s.rows == keys:
        return View(s, 0, None, causal=True)
    # contiguous: kernels of a GPU read it from an even address
    return View(s, start, bias(s, window, dtype, device)[:, start:].contiguous(), causal=False)


def bias(s: Segment, window: int | None, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What is added to the scores of a segment's rows: 0 for keys that a row sees, -inf for others; [count, keys]."""
    keys = s.past + s.base + s.rows
    if s.mask is None and (window is None or keys <= window):
        return torch.full((s.rows, keys), -torch.inf, dtype=dtype, device=device).triu_(keys - s.rows + 1)
    sees = torch.ones(s.rows, keys, dtype=torch.bool, device=device)
    if s.mask is None:
        sees.tril_(keys - s.rows)
    else:
        sees[:, s.past :] = s.mask
    if window is not None and keys > window:
        # what a row sees is a path in order of position, so the number of later keys in it is the distance
        later = sees.flip(1).cumsum(1, dtype=torch.int32).flip(1) - sees.int()
        sees &= later < window
    return torch.zeros(sees.shape, dtype=dtype, device=device).masked_fill_(sees.logical_not_(), -torch.inf)


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, scale: float, cap: float | None
) -> torch.Tensor:
    """q [count, heads, dim], keys and values [kv_heads, n, dim] -> [count, heads * dim]."""
    count, heads, dim = q.shape
    kv_heads = keys.shape[0]
    if view.start:
        keys, values = keys[:, view.start :], values[:, view.start :]
    if cap is not None:
        return _capped(q, keys, values, view, scale, cap)
    if count == 1:
        # heads of one group are rows of one small matrix: [kv_heads, 1, group, dim]
        out = F.scaled_dot_product_attention(
            q.view(kv_heads, 1, heads // kv_heads, dim),
            keys.unsqueeze(1),
            values.unsqueeze(1),
            view.bias,
            scale=scale,
        )
        return out.view(1, heads * dim)
    if kv_heads != heads:
        return _grouped(q, keys, values, view, scale)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        view.bias,
        is_causal=view.causal,
        scale=scale,
    )
    return out.squeeze(0).transpose(0, 1).reshape(count, heads * dim)


def _grouped(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, scale: float) -> torch.Tensor:
    count, heads, dim = q.shape
    kv_heads, n, _ = keys.shape
    group = heads // kv_heads
    shape = (kv_heads, group, n, dim)
    out = F.scaled_dot_product_attention(
        q.view(count, kv_heads, group, dim).permute(1, 2, 0, 3),
        keys.unsqueeze(1).expand(shape),
        values.unsqueeze(1).expand(shape),
        view.bias,
        is_causal=view.causal,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3).reshape(count, heads * dim)


def _capped(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, scale: float, cap: float
) -> torch.Tensor:
    """Scores squeezed into (-cap, cap) by cap * tanh(score / cap) before the softmax (Gemma 2)."""
    count, heads, dim = q.shape
    kv_heads, n, _ = keys.shape
    group = heads // kv_heads
    rows = q.view(count, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(kv_heads, group * count, dim)
    seen = view.bias
    if seen is None and view.causal:
        seen = torch.full((count, n), -torch.inf, dtype=q.dtype, device=q.device).triu_(1)
    out = capped(rows, keys, values, seen.repeat(group, 1) if seen is not None else None, scale, cap)
    return out.view(kv_heads, group, count, dim).permute(2, 0, 1, 3).reshape(count, heads * dim)


def capped(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None, scale: float, cap: float
) -> torch.Tensor:
    """Softmax(cap tanh(scale q k / cap) + bias) v, for q [..., n, dim] and keys [..., m, dim]."""
    scores = torch.matmul(q, keys.transpose(-1, -2)).mul_(scale / cap).tanh_().mul_(cap)
    if bias is not None:
        scores = scores + bias
    weights = torch.softmax(scores, -1, torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else None)
    return torch.matmul(weights.to(q.dtype), values)
