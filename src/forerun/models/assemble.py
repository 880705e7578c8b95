"""Weights of a checkpoint -> a running decoder: names and shapes checked first, then read tensor by tensor.

Query, key and value weights become one matrix, gate and up another, so that a layer is four multiplications; pages of
the file are given back as soon as they are copied, so that every weight is in memory once.
Does not: read a tensor before all of them are known to be there and of the right shape.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from forerun.errors import ModelError
from forerun.layers.linear import DenseLinear, Linear, linear
from forerun.layers.mlp import Mlp
from forerun.layers.norm import LayerNorm, Norm, RmsNorm
from forerun.layers.rope import interleave
from forerun.layers.whole import WholeLinear
from forerun.models.contract import ModelInfo
from forerun.models.recipe import Names, Recipe, TransformerConfig
from forerun.models.transformer import Ends, Layer, LayerWeights, Transformer, parts
from forerun.types import KVLayout
from forerun.weights.load import Tensors, trim

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """One weight as the checkpoint has it."""

    name: str
    shape: Shape


def layer_specs(config: TransformerConfig, names: Names) -> Iterator[Spec]:
    """Every tensor of a layer; names hold `{}` for its number."""
    hidden, dim = config.hidden_size, config.head_dim
    q, kv = config.num_heads * dim, config.num_kv_heads * dim
    if names.qkv:
        yield from _matrix(names, names.qkv, (q + 2 * kv, hidden), bias=config.qkv_bias)
    else:
        for name, rows in ((names.q, q), (names.k, kv), (names.v, kv)):
            yield from _matrix(names, name, (rows, hidden), bias=config.qkv_bias)
    yield from _matrix(names, names.o, (hidden, q), bias=config.o_bias)
    ups = (names.gate_up,) if names.gate_up else (names.gate, names.up) if config.gated else (names.up,)
    rows = config.ffn_size * (2 if names.gate_up else 1)
    for name in ups:
        yield from _matrix(names, name, (rows, hidden), bias=config.mlp_bias)
    yield from _matrix(names, names.down, (hidden, config.ffn_size), bias=config.mlp_bias)
    for name in _norm_names(config, names):
        yield from _norm(config, names.layer + name)
    yield from _qk_norms(config, names)


def _matrix(names: Names, name: str, shape: Shape, *, bias: bool) -> Iterator[Spec]:
    yield Spec(f"{names.layer}{name}.weight", shape[::-1] if names.transposed else shape)
    if bias:
        yield Spec(f"{names.layer}{name}.bias", shape[:1])


def _norm_names(config: TransformerConfig, names: Names) -> list[str]:
    found = [names.attention_norm] if config.pre_norm else []
    if config.pre_norm and not config.shared_norm:
        found.append(names.mlp_norm)
    return found + ([names.attention_post_norm, names.mlp_post_norm] if config.post_norm else [])


def _norm(config: TransformerConfig, name: str) -> Iterator[Spec]:
    yield Spec(f"{name}.weight", (config.hidden_size,))
    if config.norm_bias:
        yield Spec(f"{name}.bias", (config.hidden_size,))


def _qk_norms(config: TransformerConfig, names: Names) -> Iterator[Spec]:
    for name, heads in ((names.q_norm, config.num_heads), (names.k_norm, config.num_kv_heads)):
        if config.qk_norm == "head":
            yield Spec(f"{names.layer}{name}.weight", (config.head_dim,))
        elif config.qk_norm == "full":
            yield Spec(f"{names.layer}{name}.weight", (heads * config.head_dim,))
        elif config.qk_norm == "heads":
            for head in range(heads):
                yield Spec(f"{names.layer}{name}.norms.{head}.weight", (config.head_dim,))


def specs(recipe: Recipe) -> dict[str, Shape]:
    """Every tensor that a checkpoint of this recipe holds."""
    config, names = recipe.config, recipe.names
    found: dict[str, Shape] = {f"{names.embed}.weight": (config.vocab_size, config.hidden_size)}
    if config.learned_positions:
        found[f"{names.positions}.weight"] = (config.context_length, config.hidden_size)
    found |= {spec.name: spec.shape for spec in _norm(config, names.final_norm)}
    if not config.tied:
        found[f"{names.head}.weight"] = (config.vocab_size, config.hidden_size)
    if config.head_bias:
        found[f"{names.head}.bias"] = (config.vocab_size,)
    layer = list(layer_specs(config, names))
    return found | {spec.name.format(i): spec.shape for i in range(config.num_layers) for spec in layer}


class Reader:
    """Tensors by the recipe's names, converted one at a time."""

    def __init__(self, checkpoint: Tensors, recipe: Recipe, dtype: torch.dtype, device: torch.device) -> None:
        self.checkpoint, self.dtype, self.device = checkpoint, dtype, device
        self.names = {meaning(name, recipe.names): name for name in checkpoint.entries}
        self._check(recipe)

    def _check(self, recipe: Recipe) -> None:
        """Raise one ModelError that lists all tensors that are missing, unexpected or of the wrong shape."""
        wanted, names = specs(recipe), recipe.names
        tied = {f"{names.head}.weight"} if recipe.config.tied else set()
        problems = [f"missing {name}" for name in wanted if name not in self.names]
        for name, stored in self.names.items():
            shape = self.checkpoint.entries[stored].shape
            if name not in wanted and name not in tied and not re.search(names.ignored, name):
                problems.append(f"unexpected {name}")
            elif name in wanted and shape != wanted[name]:
                problems.append(f"{name} is {list(shape)} and should be {list(wanted[name])}")
        if problems:
            listing = "; ".join(problems)
            message = f"the weights in {self.checkpoint.folder} do not fit its config.json: {listing}."
            raise ModelError(f"{message} Use the config.json that belongs to these weights.")

    def raw(self, name: str) -> torch.Tensor:
        """As it lies in the file; the pages stay until `release`."""
        return self.checkpoint.read(self.names[name])

    def release(self, name: str) -> None:
        self.checkpoint.release(self.names[name])

    def get(self, name: str) -> torch.Tensor:
        """In the model's precision, on its device; a view of the file where nothing has to change."""
        stored = self.raw(name)
        tensor = stored.to(self.device, self.dtype)
        if tensor.data_ptr() != stored.data_ptr():
            self.release(name)
        return tensor

    def linear(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """The fastest form of a weight that `name` names; its pages are given back if it was copied."""
        made = linear(weight, bias)
        if not isinstance(made, DenseLinear):
            self.release(name)
        return made

    def optional(self, name: str, *, present: bool) -> torch.Tensor | None:
        return self.get(name) if present else None


def meaning(name: str, names: Names) -> str:
    """A stored name with the first prefix that fits replaced."""
    for written, meant in names.prefixes:
        if name.startswith(written):
            return meant + name[len(written) :]
    return name


class Assembler:
    """Builds the parts of one decoder; `rounded` says what the weights of layers become: "", int8 or int4."""

    def __init__(self, recipe: Recipe, reader: Reader, rounded: str = "") -> None:
        self.config, self.names, self.reader, self.rounded = recipe.config, recipe.names, reader, rounded

    def layer(self, index: int) -> Layer:
        config, names = self.config, self.names
        place = names.layer.format(index)
        pre, post = config.pre_norm, config.post_norm
        weights = LayerWeights(
            qkv=self._made(*self._qkv(index, place)),
            o=self._linear(place + names.o, bias=config.o_bias),
            mlp=self._mlp(place),
            attention_norm=self._norm(place + names.attention_norm) if pre else None,
            attention_post_norm=self._norm(place + names.attention_post_norm) if post else None,
            mlp_norm=self._norm(place + names.mlp_norm) if pre and not config.shared_norm else None,
            mlp_post_norm=self._norm(place + names.mlp_post_norm) if post else None,
            qk_norm=self._qk_norm(index, place) if config.qk_norm in {"head", "heads"} else None,
            full_norms=self._full_norms(index, place) if config.qk_norm == "full" else None,
            rope=config.ropes[index],
            window=config.windows[index],
        )
        return Layer(config, index, weights)

    def ends(self) -> Ends:
        config, names = self.config, self.names
        final = self._norm(names.final_norm)
        positions = self.reader.optional(f"{names.positions}.weight", present=config.learned_positions)
        embed = self.reader.raw(f"{names.embed}.weight")
        if self.reader.device.type != "cpu":
            embed = self.reader.get(f"{names.embed}.weight")
        bias = self.reader.optional(f"{names.head}.bias", present=config.head_bias)
        name = f"{names.embed if config.tied else names.head}.weight"
        head = linear(embed.to(self.reader.dtype) if config.tied else self.reader.get(name), bias)
        self.reader.release(name)
        return Ends(embed, positions, final, head)

    def _linear(self, name: str, *, bias: bool) -> Linear:
        weight = self._weight(name)
        biases = self.reader.optional(f"{name}.bias", present=bias)
        if self.rounded:
            return self._made(weight, biases)
        return self.reader.linear(f"{name}.weight", weight, biases)

    def _made(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return WholeLinear(weight, bias, self.rounded) if self.rounded else linear(weight, bias)

    def _weight(self, name: str) -> torch.Tensor:
        weight = self.reader.get(f"{name}.weight")
        return weight.t().contiguous() if self.names.transposed else weight

    def _mlp(self, place: str) -> Mlp:
        config, names = self.config, self.names
        down = self._linear(place + names.down, bias=config.mlp_bias)
        if names.gate_up or not config.gated:
            up = self._linear(place + (names.gate_up or names.up), bias=config.mlp_bias)
        else:
            up = self._made(*self._stacked([place + names.gate, place + names.up], bias=config.mlp_bias))
        return Mlp(up, down, config.activation, gated=config.gated)

    def _stacked(self, names: list[str], *, bias: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Several matrices as one, without holding them all twice."""
        blocks = [self.reader.raw(f"{name}.weight") for name in names]
        weight = torch.empty(
            sum(block.shape[0] for block in blocks),
            blocks[0].shape[1],
            dtype=self.reader.dtype,
            device=self.reader.device,
        )
        start = 0
        for name, block in zip(names, blocks, strict=True):
            weight[start : start + block.shape[0]] = block
            start += block.shape[0]
            self.reader.release(f"{name}.weight")
        biases = torch.cat([self.reader.get(f"{name}.bias") for name in names]) if bias else None
        return weight, biases

    def _qkv(self, index: int, place: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        config, names = self.config, self.names
        if names.qkv:
            name = place + names.qkv
            weight, bias = self._weight(name), self.reader.optional(f"{name}.bias", present=config.qkv_bias)
        else:
            weight, bias = self._stacked([place + names.q, place + names.k, place + names.v], bias=config.qkv_bias)
        weight = self.ordered(index, weight)
        return weight, self.ordered(index, bias) if bias is not None else None

    def ordered(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """Rows as [queries, keys, values], each head's pairs side by side."""
        config = self.config
        dim, turning = config.head_dim, config.num_heads + config.num_kv_heads
        if self.names.qkv_per_head:
            rows = rows.unflatten(0, (config.num_heads, 3, dim)).transpose(0, 1).flatten(0, 2)
        rope = config.ropes[index]
        if rope is None:
            return rows
        turned = interleave(rows[: turning * dim], turning, rope.dim)
        return torch.cat((turned, rows[turning * dim :]))

    def _norm(self, name: str) -> Norm:
        bias = self.reader.optional(f"{name}.bias", present=self.config.norm_bias)
        return self._make_norm(self.gain(f"{name}.weight"), bias)

    def gain(self, name: str) -> torch.Tensor:
        gain = self.reader.get(name)
        return gain.float().add(1).to(gain.dtype) if self.config.norm_plus_one else gain

    def _make_norm(self, gain: torch.Tensor, bias: torch.Tensor | None = None) -> Norm:
        if self.config.norm == "rms":
            return RmsNorm(gain, self.config.eps)
        return LayerNorm(gain, bias, self.config.eps)

    def _qk_norm(self, index: int, place: str) -> Norm:
        """One norm for queries and keys."""
        return self._make_norm(self.qk_gains(index, place))

    def qk_gains(self, index: int, place: str) -> torch.Tensor:
        """Gains [heads + kv_heads, dim], each row in the order of the weights."""
        config, gains = self.config, []
        for name, heads in ((self.names.q_norm, config.num_heads), (self.names.k_norm, config.num_kv_heads)):
            if config.qk_norm == "head":
                gains.append(self.gain(f"{place}{name}.weight").expand(heads, -1))
            else:
                gains += [self.gain(f"{place}{name}.norms.{head}.weight")[None] for head in range(heads)]
        gain = torch.cat(gains)
        rope = config.ropes[index]
        if rope is not None:
            gain = interleave(gain.flatten(), gain.shape[0], rope.dim).view(gain.shape)
        return gain

    def _full_norms(self, index: int, place: str) -> tuple[Norm, Norm]:
        rope, found = self.config.ropes[index], []
        for name, heads in ((self.names.q_norm, self.config.num_heads), (self.names.k_norm, self.config.num_kv_heads)):
            gain = self.gain(f"{place}{name}.weight")
            found.append(self._make_norm(interleave(gain, heads, rope.dim) if rope is not None else gain))
        return found[0], found[1]


def assemble(recipe: Recipe, checkpoint: Tensors, info: ModelInfo) -> Transformer:
    """The decoder that a recipe and a checkpoint make; `info` says its name, precision and device."""
    reader = Reader(checkpoint, recipe, info.layout.dtype, info.layout.device)
    assembler, layers = Assembler(recipe, reader, info.rounded), []
    for index in range(recipe.config.num_layers):
        layers.append(assembler.layer(index))
        trim()
    ends = assembler.ends()
    trim()
    return Transformer(recipe.config, replace(info, weight_bytes=_nbytes(ends, layers), padded=True), ends, layers)


def info_of(config: TransformerConfig, name: str, dtype: torch.dtype, device: torch.device) -> ModelInfo:
    """What a decoder of this config says of itself."""
    layers = config.num_layers
    layout = KVLayout((config.num_kv_heads,) * layers, (config.head_dim,) * layers, dtype, device)
    return ModelInfo(name, config.vocab_size, config.context_length, config.hidden_size, layers, layout)


def _nbytes(ends: Ends, layers: list[Layer]) -> int:
    """Bytes of the matrices, as kept in memory; norms are too small to count."""
    return ends.head.nbytes + sum(part.nbytes for layer in layers for part in parts(layer))
