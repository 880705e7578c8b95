"""One forward pass of a model over its own cache; knows shapes, not methods."""

from collections.abc import Sequence

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
        batch = pack(work, self.cache, self.info.layout.device)
        output = self.model.forward(batch, self.cache)
        self.cache.advance(batch)
        return unpack(work, output)
