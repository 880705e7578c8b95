"""A fast and a slow model write one text: the slow one where the fast one is uncertain (2406.12295).

After every prefix the next token is the fast model's if its likeliest token has at least `sure`, and the target's
otherwise. The fast model's own guesses are then never refused where it writes itself. With an exact verifier the law
is exactly this one: the proof enumerates it.
Does not: spare the target a pass over what the fast model wrote; it reads several such tokens at once. Contrast the
models where they meet (`speculative-contrastive` does), or learn where to meet.
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

_WHO = "decoder 'fs-gen'"


class FsGenDecoder(FusedDecoder):
    """Exact for the law of the two together, and not the target's own."""

    facts = Facts(
        keys=("fs-gen",),
        paper="2406.12295",
        needs=frozenset({Need.SECOND_MODEL}),
        exact=False,
        law="the fast model's distribution where it is sure, the target's elsewhere",
        evidence="docs/results/README.md#fidelity",
    )

    @dataclass(frozen=True)
    class Options:
        """`fast`: a folder ("" takes the companion); `sure`: least probability of its likeliest token."""

        fast: str = ""
        sure: float = 0.8
        dtype: str = "auto"

        def __post_init__(self) -> None:
            if not 0 <= self.sure <= 1:
                message = f"{_WHO}: sure is {self.sure}"
                raise ConfigError(f"{message}; it is a probability, give a number from 0 to 1.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), replace(parts, ahead=Ahead.NOTHING))
        self.options, self.readers = options, [Reader(parts.setup, options.fast, options.dtype, _WHO)]

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(fast="toy:100", sure=0.6)

    def fuse(self, rows: Sequence[torch.Tensor], draft: Draft, memory: Any) -> tuple[torch.Tensor, Sequence[Any]]:  # noqa: ANN401
        slow, fast = rows
        sure = torch.softmax(fast, -1).amax(-1, keepdim=True) >= self.options.sure
        return torch.where(sure, fast, slow), [None] * len(slow)
