"""Attention of a pass of fixed shape: one call for the chains of all requests, over rows gathered from the cache.

What a cell sees follows from how many positions an entry lies behind it, so that causality, trees and windows are one
rule. Does not: skip entries that nobody sees; know requests.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from forerun.caches.contract import Rows
from forerun.layers.attention import capped
from forerun.layers.kv_rows import Place
from forerun.types import Grid

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float, float | None], torch.Tensor]


def distances(grid: Grid, positions: torch.Tensor) -> torch.Tensor:
    """How many positions every entry lies behind a cell; negative: not seen. int32 [chains, width, context]."""
    (chains, context), columns = grid.table.shape, grid.tree.shape[1]
    entries = torch.arange(context, device=positions.device)
    behind = positions[grid.shown].view(chains, -1, 1).int() - entries.int()
    if not columns:
        return behind
    column = (entries - grid.settled[:, None]).unsqueeze(1)  # [chains, 1, context]
    tree = F.pad(grid.tree.int(), (0, 1), value=-1)[grid.shown].view(chains, -1, columns + 1)
    unsettled = tree.gather(2, column.clamp(0, columns).expand_as(behind))
    return torch.where(column < 0, behind, unsettled)


class Padded:
    """The attention of layers that see `window` positions back (their own included), or everything."""

    def __init__(self, grid: Grid, behind: torch.Tensor, window: int | None, rows: Rows) -> None:
        self.grid, self.rows, self.kernel = grid, rows, KERNELS[grid.kernel]
        self.sees = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
        self.bias: torch.Tensor | None = None

    def __call__(
        self, layer: int, heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scale: float, cap: float | None
    ) -> torch.Tensor:
        """Queries, keys and values [rows, heads, dim] of a layer -> [rows, heads * dim]; keys and values are stored."""
        (q, k, v), grid = heads, self.grid
        keys, values = self.store(layer, k, v)
        (chains, width, _), kv_heads, (_, count, dim) = self.sees.shape, k.shape[1], q.shape
        group = count // kv_heads
        if self.bias is None:  # the heads of a group are rows of one matrix, so what a cell sees is said `group` times
            self.bias = q.new_zeros(self.sees.shape).masked_fill_(~self.sees, -torch.inf).repeat(1, group, 1)
        cells = q[grid.shown].view(chains, width, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        flat = cells.reshape(chains, kv_heads, group * width, dim)
        out = self.kernel(flat, keys, values, self.bias.unsqueeze(1), scale, cap)
        out = out.view(chains, kv_heads, group, width, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(chains * width, count * dim)[grid.cells]

    def store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [rows, heads, dim], and read what all chains hold: [chains, heads, context, dim]."""
        table = self.grid.table
        self.rows.write(layer, Place(self.grid.to), keys, values)
        found = self.rows.read(layer, lambda strip: strip.index_select(1, table.flatten()))
        first, second = (part.view(part.shape[0], *table.shape, -1).transpose(0, 1) for part in found)
        return first, second


def sdpa(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scale: float, cap: float | None
) -> torch.Tensor:
    """Torch's own attention, or three steps where scores are capped, which torch's has no room for.

    q [chains, heads, n, dim], keys and values [chains, heads, context, dim], bias [chains, 1, n, context].
    """
    if cap is not None:
        return capped(q, keys, values, bias, scale, cap)
    return F.scaled_dot_product_attention(q, keys, values, bias, scale=scale)


def flex(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scale: float, cap: float | None
) -> torch.Tensor:
    """The same as `sdpa` by FlexAttention (2412.05496): one kernel, caps included; compiled on a GPU."""
    flat = bias.squeeze(1)

    def score(s: torch.Tensor, b: torch.Tensor, _h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        bent = s if cap is None else torch.tanh(s / cap) * cap
        return bent + flat[b, i, j]

    out: torch.Tensor = _flex(q.device.type)(q, keys, values, score_mod=score, scale=scale)
    return out


@cache
def _flex(device: str) -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    call: Callable[..., torch.Tensor] = flex_attention
    return torch.compile(call) if device == "cuda" else call


KERNELS: dict[str, Kernel] = {"sdpa": sdpa, "flex": flex}
