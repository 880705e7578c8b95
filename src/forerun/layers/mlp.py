"""Feed-forward blocks: gated (2002.05202) and plain."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from forerun.layers.linear import Linear

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Mlp:
    """down(act(up x)), or down(act(gate x) * up x) where `up` holds gate and up, one after the other."""

    def __init__(self, up: Linear, down: Linear, activation: str, *, gated: bool) -> None:
        self.up, self.down, self.gated = up, down, gated
        self.activation = ACTIVATIONS[activation]

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """What the down projection is applied to."""
        if not self.gated:
            return self.activation(self.up(x))
        gate, up = self.up(x).chunk(2, -1)
        return self.activation(gate).mul_(up)
