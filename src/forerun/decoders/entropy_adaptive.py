"""Two models take turns by how uncertain the text is: entropy adaptive decoding (2502.06833).

Before every token the entropy (nats) of the writing model's distribution enters a window. While the window's mean
exceeds `threshold` the large model writes, otherwise the small one, and who took over writes at least `hold` tokens.
The text begins with the small model. With an exact verifier the law is exactly this one: the proof enumerates it.
Does not: spare the target a pass over what the small model wrote; it reads several such tokens at once. Look at entropy
after temperature and cut-offs: it is that of the models' own distributions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from forerun.decoders.contract import FusedDecoder, Parts
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError
from forerun.host import fetch
from forerun.reader import Reader
from forerun.sheet import Ahead
from forerun.types import Draft, Facts, Need

_WHO = "decoder 'entropy-adaptive'"


class Stint(NamedTuple):
    """Who writes after a row: 0 for the target, 1 for the small model; for how many tokens; and what was measured."""

    writer: int
    written: int
    window: tuple[float, ...]


class EntropyAdaptiveDecoder(FusedDecoder):
    """Exact for the law of the two in turns, and not the target's own."""

    facts = Facts(
        keys=("entropy-adaptive",),
        paper="2502.06833",
        needs=frozenset({Need.SECOND_MODEL}),
        exact=False,
        law="the small model's distribution while the mean entropy is low, the target's while it is high",
        evidence="docs/results/README.md#fidelity",
    )

    @dataclass(frozen=True)
    class Options:
        """`small`: a folder ("" takes the companion); `window`: entropies in the mean; `threshold` 0: the target."""

        small: str = ""
        threshold: float = 1.0
        window: int = 5
        hold: int = 10
        dtype: str = "auto"

        def __post_init__(self) -> None:
            if not self.threshold >= 0:
                message = f"{_WHO}: threshold is {self.threshold}"
                raise ConfigError(f"{message}; it is an entropy in nats, give a number of at least 0.")
            if self.window < 1 or self.hold < 1:
                message = f"{_WHO}: window is {self.window} and hold is {self.hold}"
                raise ConfigError(f"{message}; both count tokens, give at least 1.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), replace(parts, ahead=Ahead.NOTHING))
        self.options, self.readers = options, [Reader(parts.setup, options.small, options.dtype, _WHO)]

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(small="toy:100", threshold=0.8, window=2, hold=2)

    def fuse(self, rows: Sequence[torch.Tensor], draft: Draft, memory: Any) -> tuple[torch.Tensor, Sequence[Any]]:  # noqa: ANN401
        entropies = fetch(torch.stack([torch.special.entr(torch.softmax(row, -1)).sum(-1) for row in rows])).T.tolist()
        before = memory or Stint(1, self.options.hold, ())  # of the row by which each row's last token was judged
        stints = [self._stint(before, entropies[0])]
        for node, parent in enumerate(draft.parents):
            stints.append(self._stint(stints[parent + 1], entropies[node + 1]))
        law = torch.stack([rows[stint.writer][row] for row, stint in enumerate(stints)])
        return law, stints

    def _stint(self, before: Stint, entropies: Sequence[float]) -> Stint:
        """Who writes the token after a row; `entropies` are the models' there."""
        window = (*before.window, float(entropies[before.writer]))[-self.options.window :]
        wanted = 0 if sum(window) / len(window) > self.options.threshold else 1
        if wanted != before.writer and before.written >= self.options.hold:
            return Stint(wanted, 1, window)
        return Stint(before.writer, before.written + 1, window)
