"""Weights in whole numbers on a GPU, by torchao where it is installed; activations stay as they are.

Does not: round embeddings or the head; run where compiled passes do, which have whole numbers of their own.
"""

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

from forerun.errors import ConfigError
from forerun.layers.linear import Linear

GROUP = 32  # inputs that share a scale, in int4; in int8 all inputs of an output do


class WholeLinear(Linear):
    """A map by a weight of torchao's [out, in]; its product widens what it reads."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: str) -> None:
        super().__init__(weight, bias)
        module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        found = _torchao(dtype)
        found.quantize_(module, _kind(found, dtype))
        self.weight = module.weight
        bits = 8 if dtype == "int8" else 4
        scales = self.numel // (weight.shape[1] if dtype == "int8" else GROUP)
        self.nbytes = self.numel * bits // 8 + scales * weight.itemsize

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias).add_(residual)


def _torchao(dtype: str) -> Any:  # noqa: ANN401 - a module that may be missing
    try:
        return import_module("torchao.quantization")
    except ImportError as missing:
        message = f"dtype {dtype!r} on a GPU needs torchao, which is not here"
        raise ConfigError(f"{message} ({missing}); pip install torchao, or use dtype='bf16'.") from None


def _kind(found: Any, dtype: str) -> Any:  # noqa: ANN401 - torchao's
    if dtype == "int8":
        return found.Int8WeightOnlyConfig()
    return found.Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
