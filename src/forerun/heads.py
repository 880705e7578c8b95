"""Small heads on a model's hidden states: one row of weights, in a file that `forerun train` writes.

Does not: have hidden layers; train (`train/judge.py` and `train/lengths.py` do).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

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
