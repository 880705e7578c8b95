"""Several models write one text, from the weighted mean of their distributions (2502.01662).

The mean is taken of each model's own softmax; penalties, bans, temperature and cut-offs apply to it, as to a model's.
Any drafter guesses, and with an exact verifier the law is exactly the ensemble's: the proof enumerates it.
Does not: let every model propose in turn; a token that the target alone would add waits for the others, who read the
draft in one pass each. Weigh models by what they say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from forerun.decoders.contract import FusedDecoder, Parts
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError
from forerun.reader import Reader
from forerun.sheet import Ahead
from forerun.types import Draft, Facts, Need

_WHO = "decoder 'speculative-ensemble'"


class SpeculativeEnsembleDecoder(FusedDecoder):
    """Exact for the ensemble's distribution, and not the target's own."""

    facts = Facts(
        keys=("speculative-ensemble",),
        paper="2502.01662",
        needs=frozenset({Need.SECOND_MODEL}),
        exact=False,
        law="the weighted mean of the models' distributions",
        evidence="docs/results/README.md#fidelity",
    )

    @dataclass(frozen=True)
    class Options:
        """`models`: folders beside the target (none: its companion); `weights`: its own, then theirs (none: even)."""

        models: tuple[str, ...] = ()
        weights: tuple[float, ...] = ()
        dtype: str = "auto"

        def __post_init__(self) -> None:
            count = 1 + max(len(self.models), 1)
            if len(self.weights) not in (0, count):
                message = f"{_WHO}: there are {len(self.weights)} weights for {count} models"
                raise ConfigError(f"{message}; give one for the target and one for each other model, or none.")
            if any(not weight >= 0 for weight in self.weights) or (self.weights and not sum(self.weights) > 0):
                message = f"{_WHO}: the weights are {list(self.weights)}"
                raise ConfigError(f"{message}; give numbers of at least 0 that are not all 0.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), replace(parts, ahead=Ahead.NOTHING))
        self.readers = [Reader(parts.setup, name, options.dtype, _WHO) for name in options.models or ("",)]
        weights = options.weights or (1.0,) * (1 + len(self.readers))
        self.options, self.shares = options, [weight / sum(weights) for weight in weights]

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(models=("toy:100",), weights=(0.6, 0.4))

    def fuse(self, rows: Sequence[torch.Tensor], draft: Draft, memory: Any) -> tuple[torch.Tensor, Sequence[Any]]:  # noqa: ANN401
        said = [share * torch.softmax(row, -1) for share, row in zip(self.shares, rows, strict=True)]
        return torch.stack(said).sum(0).log(), [None] * len(rows[0])
