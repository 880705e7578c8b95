"""Enlarge a decoder without changing its function: the cost of a big model, the outputs of a small one, bit for bit.

Layers are added after the last one whose output and down projections are zero, so that each adds zero to its input.
Their feed-forward is as wide as it takes to reach the wanted size at the depth that real models of that size have.
Does not: make sense for methods that skip or exit layers; the added ones are free to skip.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch

from forerun.errors import ConfigError
from forerun.models.contract import Model, ModelInfo
from forerun.models.recipe import TransformerConfig

DEPTHS = ((700_000_000, 24), (3_000_000_000, 32), (float("inf"), 48))  # parameters up to, layers
LEAST = 8  # added layers, where the model is as deep as real ones already
SILENT = ("o_proj.weight", "down_proj.weight")  # of a layer that adds nothing where these are zero
BLOCK = 1 << 20  # random numbers that are drawn; larger weights repeat them, for their cost is all that counts


Noise = Callable[[int, int], torch.Tensor]


class Growing(Model):
    """A decoder that can be enlarged."""

    config: TransformerConfig
    numel: int  # weights of all matrices
    widths: tuple[int, ...]  # of every layer's feed-forward

    @abstractmethod
    def grow(self, config: TransformerConfig, info: ModelInfo, width: int, noise: Noise) -> "Growing":
        """The same decoder with more layers, as many as `config` and `info` say.

        An added layer is like the last one, with a feed-forward of `width`, 16-bit matrices of `noise` and zeros in
        its output and down projections, which are written: a page that was never written costs nothing to read.
        """


def inflate(model: Growing, parameters: int) -> Growing:
    """The same function in about `parameters` weights, KV layout included."""
    info, config = model.info, model.config
    if parameters <= model.numel:
        raise ConfigError(
            f"{info.name} has {model.numel:,} parameters already; inflate to more than that, not {parameters:,}."
        )
    total = layers_for(info.num_layers, parameters)
    added = total - info.num_layers
    width = width_for(config, (parameters - model.numel) // added)
    config = replace(
        config,
        num_layers=total,
        ropes=(*config.ropes, *config.ropes[-1:] * added),
        windows=(*config.windows, *(None,) * added),
    )
    held = info.layout
    layout = replace(held, heads=(config.num_kv_heads,) * total, dims=(config.head_dim,) * total)
    info = replace(info, name=f"{info.name}, inflated to {parameters:,} parameters", num_layers=total, layout=layout)
    return model.grow(config, info, width, _noise(held.device))


def layers_for(layers: int, parameters: int) -> int:
    """How many layers a model of so many has once it is that large."""
    depth = next(depth for most, depth in DEPTHS if parameters <= most)
    return layers + max(depth - layers, LEAST)


def _noise(device: torch.device) -> Noise:
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0)).mul_(0.02).half().to(device)

    def noise(rows: int, columns: int) -> torch.Tensor:
        return block.repeat(-(-rows * columns // BLOCK))[: rows * columns].view(
            rows, columns
        )  # a copy: the caller's own

    return noise


def width_for(config: TransformerConfig, per_layer: int) -> int:
    """The feed-forward width that makes a layer of `per_layer` weights."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    left = per_layer - heads * config.head_dim * config.hidden_size
    width = left // (config.hidden_size * (3 if config.gated else 2))
    return max(width // 16, 1) * 16
