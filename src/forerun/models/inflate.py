"""Enlarge a decoder without changing its function: the cost of a big model, the outputs of a small one, bit for bit.

Layers are added after the last one whose output and down projections are zero, so that each adds zero to its input.
Their feed-forward is as wide as it takes to reach the wanted size at the depth that real models of that size have.
Does not: make sense for methods that skip or exit layers; the added ones are free to skip.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from forerun.errors import ConfigError
from forerun.layers.linear import Linear, linear, linear_of_half
from forerun.layers.mlp import Mlp
from forerun.models.recipe import TransformerConfig
from forerun.models.transformer import Layer, Transformer, parts
from forerun.types import KVLayout
from forerun.weights.load import trim

DEPTHS = ((700_000_000, 24), (3_000_000_000, 32), (float("inf"), 48))  # parameters up to, layers
LEAST = 8  # added layers, where the model is as deep as real ones already
BLOCK = 1 << 20  # random numbers that are drawn; larger weights repeat them, for their cost is all that counts


def inflate(model: Transformer, parameters: int) -> Transformer:
    """The same function in about `parameters` weights, KV layout included."""
    info, config = model.info, model.config
    held = model.ends.head.numel + sum(part.numel for layer in model.layers for part in parts(layer))
    if parameters <= held:
        raise ConfigError(
            f"{info.name} has {held:,} parameters already; inflate to more than that, not {parameters:,}."
        )
    depth = next(layers for most, layers in DEPTHS if parameters <= most)
    added = max(depth - info.num_layers, LEAST)
    width = _width(config, (parameters - held) // added)
    total = info.num_layers + added
    config = replace(
        config,
        num_layers=total,
        ropes=(*config.ropes, *config.ropes[-1:] * added),
        windows=(*config.windows, *(None,) * added),
    )
    noise = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)).mul_(0.02).half().to(info.layout.device)
    extra = list(_layers(model, config, width, noise))
    layout = KVLayout((config.num_kv_heads,) * total, (config.head_dim,) * total, info.layout.dtype, info.layout.device)
    grown = sum(part.nbytes for layer in extra for part in parts(layer))
    name = f"{info.name}, inflated to {parameters:,} parameters"
    info = replace(info, name=name, num_layers=total, layout=layout, weight_bytes=info.weight_bytes + grown)
    return Transformer(config, info, model.ends, [*model.layers, *extra])


def _width(config: TransformerConfig, per_layer: int) -> int:
    """The feed-forward width that makes a layer of `per_layer` weights."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    left = per_layer - heads * config.head_dim * config.hidden_size
    width = left // (config.hidden_size * (3 if config.gated else 2))
    return max(width // 16, 1) * 16


def _layers(model: Transformer, config: TransformerConfig, width: int, noise: torch.Tensor) -> Iterator[Layer]:
    like = model.layers[-1].weights
    hidden, dim = config.hidden_size, config.head_dim
    q, kv = config.num_heads * dim, config.num_kv_heads * dim
    layout = model.info.layout

    def make(half: torch.Tensor) -> Linear:
        return linear_of_half(half) if layout.dtype == torch.float32 else linear(half.to(layout.dtype))

    def random(rows: int, columns: int) -> Linear:
        repeats = -(-rows * columns // noise.numel())
        return make(noise.repeat(repeats)[: rows * columns].view(rows, columns))

    def nothing(rows: int, columns: int) -> Linear:
        # written, not only promised: a page that was never written costs nothing to read
        return make(torch.empty(rows, columns, dtype=noise.dtype, device=layout.device).zero_())

    for index in range(model.info.num_layers, config.num_layers):
        up = random(width * (2 if config.gated else 1), hidden)
        mlp = Mlp(up, nothing(hidden, width), config.activation, gated=config.gated)
        weights = replace(like, qkv=random(q + 2 * kv, hidden), o=nothing(hidden, q), mlp=mlp, window=None)
        trim()
        yield Layer(config, index, weights)
