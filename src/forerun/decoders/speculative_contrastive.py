"""What a small model says as well is worth less: contrastive decoding, drafted and verified (2311.08981).

The law is softmax of (1 + beta) l - beta a over the tokens that have at least `alpha` times the likeliest one's
probability under the target: l are the target's logits, a the amateur's (2309.09117, eq. 1 and 2). Penalties, bans,
temperature and cut-offs apply to it. The amateur reads every draft whole, so the token after the last accepted one
follows the same law, and with an exact verifier so does the text: the proof enumerates it.
Does not: take the drafter's word for what the amateur says; it reads the draft once more, in one pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch

from forerun.decoders.contract import FusedDecoder, Parts
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError
from forerun.reader import Reader
from forerun.sheet import Ahead
from forerun.types import Draft, Facts, Need

UNLIKELY = 1e4  # nats below: probability zero, and yet in the target's order where bans leave nothing else
_WHO = "decoder 'speculative-contrastive'"


class SpeculativeContrastiveDecoder(FusedDecoder):
    """Exact for the contrastive distribution, and not the target's own."""

    facts = Facts(
        keys=("speculative-contrastive",),
        paper="2311.08981",
        needs=frozenset({Need.SECOND_MODEL}),
        exact=False,
        law="the contrastive distribution of the target and the amateur",
        evidence="docs/results/README.md#fidelity",
    )

    @dataclass(frozen=True)
    class Options:
        """`amateur`: a folder ("" takes the companion); `alpha` 0 and `beta` 0 leave the target as it is."""

        amateur: str = ""
        alpha: float = 0.1
        beta: float = 0.5
        dtype: str = "auto"

        def __post_init__(self) -> None:
            if not 0 <= self.alpha <= 1:
                message = f"{_WHO}: alpha is {self.alpha}"
                raise ConfigError(f"{message}; it is a share of the best probability, give a number from 0 to 1.")
            if not self.beta >= 0:
                raise ConfigError(f"{_WHO}: beta is {self.beta}; give a number of at least 0.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), replace(parts, ahead=Ahead.NOTHING))
        self.readers = [Reader(parts.setup, options.amateur, options.dtype, _WHO)]
        self.options, self.depth = options, log(options.alpha) if options.alpha > 0 else -torch.inf

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(amateur="toy:100")

    def fuse(self, rows: Sequence[torch.Tensor], draft: Draft, memory: Any) -> tuple[torch.Tensor, Sequence[Any]]:  # noqa: ANN401
        expert, amateur = rows
        law = (1 + self.options.beta) * expert - self.options.beta * amateur
        likely = expert >= expert.amax(-1, keepdim=True) + self.depth
        return torch.where(likely, law, expert - UNLIKELY), [None] * len(law)
