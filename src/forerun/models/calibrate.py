"""Whole numbers chosen for the inputs that a text gives (GPTQ, 2210.17323), instead of for the weights alone.

The exact model reads the text; the inputs x of every matrix leave their second moment H = sum of x x'. Columns are
rounded in order, and what one loses is made up for by those after it. An output keeps its old numbers where the new
ones lose more on the text. A head that is also the embedding is read for what it decides. Does not: change scales.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forerun.errors import ConfigError
from forerun.layers.linear import Linear
from forerun.layers.mlp import Mlp
from forerun.models.native import INT4, rotated
from forerun.models.recipe import Recipe
from forerun.models.tokenizer import Tokenizer
from forerun.models.transformer import Transformer
from forerun.weights.packed import memory

WINDOW = 512  # tokens that are read together
TOKENS = 16384  # of every text, at most
LETTERS = 32  # of a text per token, at most
ROOM = 4 << 30  # bytes of moments that are in memory at a time; the text is read once for every part
DAMPING = 0.01  # of the mean moment, added to all
GROUP = 32  # inputs that share a multiplier
BLOCK = 128  # columns whose losses reach the later ones together
MULTIPLIER_MAX = 15
PARTS = ("qkv", "o", "up", "down")
Read = Callable[[Transformer, Sequence[int], int], object]  # one pass over a text, with logits of its last rows


class Recorder(Linear):
    """A linear map that keeps the second moment of its inputs."""

    def __init__(self, inner: Linear) -> None:
        self.inner, self.bias, self.numel, self.nbytes = inner, inner.bias, inner.numel, inner.nbytes
        self.moment: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self._see(x)
        return self.inner(x)

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        self._see(x)
        return self.inner.onto(x, residual)

    def _see(self, x: torch.Tensor) -> None:
        moment = x.t() @ x
        self.moment = moment if self.moment is None else self.moment.add_(moment)


def windows(folder: Path, texts: Sequence[Path], context: int) -> Iterator[list[int]]:
    """Tokens of the texts in windows."""
    tokenizer = Tokenizer.from_folder(folder)
    begin, size = tokenizer.encode("", bos=True), min(WINDOW, context)
    for path in texts:
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(TOKENS * LETTERS)
        except (OSError, ValueError) as problem:
            raise ConfigError(f"cannot read {str(path)!r} ({problem}); name a text in UTF-8.") from problem
        ids = tokenizer.encode(text, bos=False)[:TOKENS]
        if not ids:
            raise ConfigError(f"{str(path)!r} is empty; name a text like those that the model will read.")
        step = size - len(begin)
        yield from (begin + ids[at : at + step] for at in range(0, len(ids), step))


class Calibration:
    """Improves packed matrices one by one, in the order of layers."""

    def __init__(self, recipe: Recipe, model: Transformer, texts: Sequence[Sequence[int]], read: Read) -> None:
        self.config, self._model, self._texts, self._pass = recipe.config, model, texts, read
        self._keys = dict(_keys(recipe))
        self._moments: dict[tuple[int, str], torch.Tensor] = {}

    def improve(self, name: str, made: Any, rows: torch.Tensor, to: np.ndarray) -> None:  # noqa: ANN401 - the extension's
        """Round again the rows of a stored weight that lie in a packed matrix."""
        key = self._keys.get(name)
        if key is None:
            return
        if key not in self._moments:
            self._moments = {}  # before the next ones take its place
            self._moments = self._read(key[0])
        moment = self._moments[key]
        old = torch.empty(len(to), made.inputs)
        for i, row in enumerate(to.tolist()):
            made.row(row, old[i].data_ptr())
        every = torch.frombuffer(memory(*made.spans()[1]), dtype=torch.float32)
        scales = every[torch.from_numpy(to)]
        weight = rotated(rows)
        found = in_order(weight, moment, scales, four=made.kind == INT4)
        better = loss(found.values(scales) - weight, moment) < loss(old - weight, moment)
        kept = better.nonzero()[:, 0]
        codes, multipliers = (part[kept].contiguous().numpy() for part in (found.wholes, found.multipliers))
        made.codes(codes, multipliers, scales[kept].numpy(), to[kept.numpy()])

    def _read(self, first: int) -> dict[tuple[int, str], torch.Tensor]:
        """Moments of a layer and of as many after it as there is room for; -1: of the head."""
        c = self.config
        each = 4 * (2 * c.hidden_size**2 + (c.num_heads * c.head_dim) ** 2 + c.ffn_size**2)
        last = min(c.num_layers, first + max(1, ROOM // each)) if first >= 0 else -1
        model, recorders = watched(self._model, range(first, last) if first >= 0 else None)
        for tokens in self._texts:
            self._pass(model, tokens, len(tokens) if first < 0 else 0)
        moments = {key: found.moment for key, found in recorders.items() if found.moment is not None}
        return {key: rotated(rotated(moment).t()) for key, moment in moments.items()}  # of rotated inputs


def _keys(recipe: Recipe) -> Iterator[tuple[str, tuple[int, str]]]:
    """Name of a stored weight -> the layer and the part whose inputs it has; layer -1: the head."""
    names = recipe.names
    stored = {
        "qkv": (names.qkv, names.q, names.k, names.v),
        "o": (names.o,),
        "up": (names.gate_up, names.gate, names.up),
        "down": (names.down,),
    }
    for index in range(recipe.config.num_layers):
        for part, found in stored.items():
            yield from ((names.layer.format(index) + name, (index, part)) for name in found if name)
    yield names.embed if recipe.config.tied else names.head, (-1, "head")


def watched(model: Transformer, layers: range | None) -> tuple[Transformer, dict[tuple[int, str], Recorder]]:
    """The same model with recorders around the matrices of some layers, or around its head."""
    found: dict[tuple[int, str], Recorder] = {}
    if layers is None:
        found[-1, "head"] = Recorder(model.ends.head)
        ends = replace(model.ends, head=found[-1, "head"])
        return Transformer(model.config, model.info, ends, model.layers), found
    changed = list(model.layers)
    for index in layers:
        w = model.layers[index].weights
        made = [Recorder(matrix) for matrix in (w.qkv, w.o, w.mlp.up, w.mlp.down)]
        found |= {(index, part): recorder for part, recorder in zip(PARTS, made, strict=True)}
        mlp = Mlp(made[2], made[3], model.config.activation, gated=model.config.gated)
        layer = type(model.layers[index])
        changed[index] = layer(model.config, index, replace(w, qkv=made[0], o=made[1], mlp=mlp))
    return Transformer(model.config, model.info, model.ends, changed), found


@dataclass(frozen=True)
class Rounded:
    """Whole numbers [outputs, inputs] and, in four bits, multipliers [outputs, groups]; else none."""

    wholes: torch.Tensor
    multipliers: torch.Tensor

    def values(self, scales: torch.Tensor) -> torch.Tensor:
        """The weights that they stand for."""
        times = self.wholes.float()
        if self.multipliers.shape[1]:
            times = times * self.multipliers.float().repeat_interleave(GROUP, 1)[:, : times.shape[1]]
        return times * scales[:, None]


def loss(off: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
    """Squared error of every output [outputs] over the text when its weights are off by this much."""
    return ((off @ moment) * off).sum(1)


def factor(moment: torch.Tensor) -> torch.Tensor:
    """The upper Cholesky factor of the inverse moment, damped; an input that is always zero may be anything."""
    h = moment.double()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1
    diagonal += DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(h))
    upper: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return upper.float()


def in_order(weight: torch.Tensor, moment: torch.Tensor, scales: torch.Tensor, *, four: bool) -> Rounded:
    """Round [outputs, inputs] column by column, each loss spread over the columns that follow (algorithm 1)."""
    upper, left = factor(moment), weight.t().contiguous()  # [inputs, outputs]: a column is contiguous
    inputs, outputs = left.shape
    low, high = (-8, 7) if four else (-127, 127)
    wholes = torch.empty(inputs, outputs, dtype=torch.int8)
    multipliers = torch.empty(-(-inputs // GROUP) if four else 0, outputs, dtype=torch.int8)
    unit = scales
    for begin in range(0, inputs, BLOCK):
        end = min(begin + BLOCK, inputs)
        losses = torch.empty(end - begin, outputs)
        for i in range(begin, end):
            if four and i % GROUP == 0:
                until = min(i + GROUP, inputs)
                weights = upper.diagonal()[i:until] ** -2
                multipliers[i // GROUP] = best_multipliers(left[i:until], scales, weights)
                unit = scales * multipliers[i // GROUP]
            whole = torch.where(unit != 0, left[i] / unit, 0).round_().clamp_(low, high)
            wholes[i] = whole
            losses[i - begin] = (left[i] - whole * unit) / upper[i, i]
            left[i + 1 : end].addr_(upper[i, i + 1 : end], losses[i - begin], alpha=-1)
        left[end:].addmm_(upper[begin:end, end:].t(), losses, alpha=-1)
    return Rounded(wholes.t().contiguous(), multipliers.t().contiguous())


def best_multipliers(group: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Of a group [inputs, outputs], the multiplier per output that loses least where `weights` [inputs] count."""
    top = group.gather(0, group.abs().argmax(0, keepdim=True))[0]
    sign = torch.where(top < 0, 1.0, -1.0)  # the largest weight becomes -8
    near = torch.where(scales > 0, top.abs() / (8 * scales), 1.0).ceil().clamp_(1, MULTIPLIER_MAX)
    best, least = sign * near, torch.full_like(top, torch.inf)
    for less in range(-1, 6):
        for turned in (1, -1):
            tried = (near - less).clamp(1, MULTIPLIER_MAX) * sign * turned
            unit = torch.where(scales > 0, tried * scales, 1.0)
            off = group - (group / unit).round_().clamp_(-8, 7) * unit
            lost = (weights[:, None] * off * off).sum(0)
            best, least = torch.where(lost < least, tried, best), torch.minimum(lost, least)
    return best.to(torch.int8)
