"""Small heads on a model's hidden states or a few features, in files that `forerun train` writes.

Does not: train (`train/judge.py`, `train/lengths.py` and `train/stopping.py` do).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from forerun.errors import ConfigError
from forerun.types import Floats


@dataclass(frozen=True)
class Head:
    """Its opinion of a hidden state is weight . state + bias."""

    layer: int
    weight: Floats  # [hidden]
    bias: float
    usual: float = 0.0  # the mean of what it was trained on, where that was kept

    def __call__(self, state: Floats) -> float:
        """What it says of a hidden state [hidden]."""
        return float(self.weight @ state) + self.bias

    def fit_for(self, hidden_size: int, who: str, command: str) -> None:
        """ConfigError where the model's states have another size."""
        if len(self.weight) != hidden_size:
            sizes = f"reads {len(self.weight)} numbers and the model's hidden states have {hidden_size}"
            raise ConfigError(f"{who}: the head {sizes}; it is another model's, train one with `{command}`.")


def load(name: str, bundled: str, who: str, command: str) -> Head:
    """The head in a file; 'reference' is that of the bundled model, toy:SEED:WIDTH a random one."""
    try:
        found = _content(name, bundled)
        weight = np.array(found["weight"], np.float32)
        return Head(int(found["layer"]), weight, float(found["bias"]), float(found.get("usual", 0)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise ConfigError(f"{who}: {name!r} is no head ({problem!r}); train one with `{command}`.") from problem


def _content(name: str, bundled: str) -> Mapping[str, Any]:
    if name.startswith("toy:"):
        seed, width = (int(part) for part in name.split(":")[1:])
        return {"layer": -1, "weight": np.random.default_rng(seed).normal(size=width), "bias": 0.0, "usual": 1.0}
    place = files("forerun") / "reference" / "target" / bundled if name == "reference" else Path(name)
    content: Mapping[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class Network:
    """The probability of a yes: a logistic function of the last of some layers, with a SiLU between any two.

    A layer as wide as what it reads is added to that.
    """

    purpose: str
    layer: int  # of the model whose states it reads, where it reads any
    layers: Sequence[tuple[Floats, Floats]]  # weight [width, inputs] and bias [width]; the last has width 1

    @property
    def reads(self) -> int:
        """How many numbers it is given."""
        return int(self.layers[0][0].shape[1])

    def __call__(self, inputs: Floats) -> Floats:
        """What it says of inputs [n, reads], [n]."""
        for weight, bias in self.layers[:-1]:
            found = inputs @ weight.T + bias
            found *= 0.5 + 0.5 * np.tanh(0.5 * found)
            inputs = found + inputs if found.shape == inputs.shape else found
        weight, bias = self.layers[-1]
        chance: Floats = 0.5 + 0.5 * np.tanh(0.5 * (inputs @ weight[0] + bias))
        return chance

    @property
    def content(self) -> bytes:
        """What `network` reads."""
        parts = {"weight": 0, "bias": 1}
        tensors = {f"{i}.{name}": pair[at] for i, pair in enumerate(self.layers) for name, at in parts.items()}
        return save(tensors, {"purpose": self.purpose, "layer": str(self.layer)})


def network(name: str, purpose: str, who: str, command: str) -> Network:
    """The network in a file that was trained for this; toy:SEED:READS is a random one."""
    try:
        return _toy(name, purpose) if name.startswith("toy:") else _read(name, purpose)
    except (OSError, ValueError, LookupError, SafetensorError) as problem:
        raise ConfigError(f"{who}: {name!r} is no head for it ({problem!r}); train one with `{command}`.") from problem


def _read(name: str, purpose: str) -> Network:
    with safe_open(name, "np") as file:
        facts, count = file.metadata() or {}, len(file.keys()) // 2
        layers = [(file.get_tensor(f"{i}.weight"), file.get_tensor(f"{i}.bias")) for i in range(count)]
    if facts["purpose"] != purpose:
        raise ValueError(f"it is for {facts['purpose']}")
    widths = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    if widths[-1] != 1 or any(pair[0].shape != (b, a) for pair, a, b in zip(layers, widths, widths[1:], strict=False)):
        raise ValueError("its layers do not fit each other")
    return Network(purpose, int(facts["layer"]), layers)


def _toy(name: str, purpose: str) -> Network:
    seed, reads = (int(part) for part in name.split(":")[1:])
    rng, widths = np.random.default_rng(seed), (reads, reads, 1)
    shapes = zip(widths[1:], widths, strict=False)
    return Network(purpose, -1, [(rng.normal(size=(out, into)), rng.normal(size=out)) for out, into in shapes])
