"""What a model is: a frozen config and one flat forward over a Pass and a Cache.

Tree masks, hidden states and partial depth are part of the call. A model holds weights and nothing that changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from forerun.caches.contract import Cache
from forerun.types import Flat, Grown, KVLayout, Pass, PassOutput, Sprout


class Whole(NamedTuple):
    """What a pass in one launch leaves."""

    output: PassOutput
    facts: torch.Tensor  # float64 [3, wanted], on the device; see engine.batch.summary
    told: np.ndarray[Any, Any]  # the same on the host, once the device is done


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the engine and the members may know about a model."""

    name: str
    vocab_size: int  # rows of the logits, padded rows included
    context_length: int
    hidden_size: int
    num_layers: int
    layout: KVLayout
    eos: tuple[int, ...] = ()
    companion: str | None = None  # folder of a drafter that the model's own folder names
    weight_bytes: int = 0
    rounded: str = ""  # what weights were rounded to at load: bfloat16, int8, w8a8 or int4
    padded: bool = False  # it runs passes of fixed shape, which have a grid


class Resident(Protocol):
    """Passes of few rows over one cache that a device runs as one launch each."""

    def run(self, flat: Flat, given: torch.Tensor | None = None) -> Whole | None:
        """Run a pass, with the first tokens replaced by those of a tensor where one is given; None: it does not fit.

        Logits and hidden states are valid until the next pass. Does not advance the cache, or wait for the device.
        """


class Model(ABC):
    """Logits and hidden states of a flat pass. The cache it is given was made for its layout."""

    info: ModelInfo
    follows: bool = False  # whether it has `run`, `follow` and `follow_best`, which read passes as the host has them

    @abstractmethod
    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        """Run the pass: write keys and values of its rows to the cache, read what each row may see, return logits.

        Does not: advance the cache (the runner does), sample, or keep anything.
        """

    def run(self, flat: Flat, cache: Cache) -> PassOutput:
        """The same as `forward`, of a pass that no tensor holds."""
        raise NotImplementedError

    def follow(self, steps: Iterable[tuple[Flat, Sequence[int]]], cache: Cache) -> list[PassOutput]:
        """Chains in a row, through all layers: behind the first pass, a row's token is what one before it found.

        Each pass comes with the rows, among those of the pass before whose logits are wanted, of which its tokens are
        the best, or what their lot has drawn; what stands in `tokens` does not matter there. Of all logits only those
        of the last pass and of passes with lots are whole. `steps` advances the cache, and is read to its end before
        anything runs.
        """
        raise NotImplementedError

    def follow_best(self, sprouts: Sequence[Sprout], cache: Cache) -> list[Grown]:
        """Read tokens that the cache counts as read, and grow the best tree behind each.

        What the tree `opt-tree` grows, in as many passes.
        """
        raise NotImplementedError

    @property
    def aside(self) -> bool:
        """Whether `begin_best` is there: whether a core is left for trees while the host does something else."""
        return False

    def begin_best(self, sprouts: Sequence[Sprout], cache: Cache) -> Callable[[], list[Grown]]:
        """The same beside what the host does meanwhile; what comes back waits for it.

        Until then neither the cache nor its model may be used by anybody else.
        """
        raise NotImplementedError

    def resident(self, cache: Cache) -> Resident | None:
        """Its passes of few rows over a cache as one launch each, where its device can run them so."""
        return None

    @property
    def lost(self) -> str:
        """Why it can run no pass any more, in a sentence; empty while it can."""
        return ""
