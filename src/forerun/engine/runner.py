"""One forward pass of a model over its own cache; knows shapes, not methods."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from forerun.caches.contract import Cache
from forerun.engine.batch import pack, unpack
from forerun.models.contract import Model
from forerun.types import Output, Work


class ModelRunner:
    """A model and its cache. The target has one, a drafter with a second model has another."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model, self.cache, self.info = model, cache, model.info

    def run(self, work: Sequence[Work]) -> list[Output]:
        """One flat pass for all works with the same layer plan; their tokens are unjudged afterwards."""
        with torch.inference_mode():
            batch = pack(work, self.cache, self.info.layout.device)
            output = self.model.forward(batch, self.cache)
            self.cache.advance(batch)
            return unpack(work, output)


def healthy(outputs: Sequence[Output]) -> list[bool]:
    """Whether every row of logits of each output has a finite maximum: no NaN, no +inf, not all forbidden."""
    rows = [output.logits for output in outputs if len(output.logits)]
    if not rows:
        return [True] * len(outputs)
    peaks = (torch.cat(rows) if len(rows) > 1 else rows[0]).amax(-1)
    finite = torch.isfinite(peaks).tolist()
    ends = list(accumulate((len(output.logits) for output in outputs), initial=0))
    return [all(finite[start:end]) for start, end in pairwise(ends)]
