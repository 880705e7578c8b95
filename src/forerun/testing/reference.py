"""What decoding should yield, computed apart from every loop: one pass per prefix, nothing kept between them.

Does not: use the engine, a drafter, a verifier or a random number; only the model, and the function from logits to p.
"""

from collections.abc import Iterator, Sequence

import torch

from forerun.build import guides_for, setup_for
from forerun.caches import CACHES
from forerun.config import Config
from forerun.engine.runner import ModelRunner
from forerun.models.contract import Model
from forerun.sampling import Shaper
from forerun.types import Guide, Sampling, Work

Tokens = tuple[int, ...]


class Reference:
    """Laws of a model's output under some sampling."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._rows: dict[Tokens, torch.Tensor] = {}
        self._guides = guides_for(setup_for(Config(), model))

    def logits(self, tokens: Tokens) -> torch.Tensor:
        """The row [1, vocab] after `tokens`, from a cache that has seen nothing else."""
        if tokens not in self._rows:
            member = CACHES["contiguous"]
            cache = member(member.Options(), self.model.info.layout, 1, len(tokens))
            slot, _ = cache.open(())
            work = Work(slot, tokens, logits=(len(tokens) - 1,))
            self._rows[tokens] = ModelRunner(self.model, cache).run([work])[0].logits
        return self._rows[tokens]

    def next(self, prompt: Tokens, output: Tokens, sampling: Sampling) -> torch.Tensor:
        """The law [vocab] of the token after `output`."""
        eos, guide = self.model.info.eos, self._read(output, sampling)[0]
        shaper = Shaper(sampling, (*prompt, *output), len(prompt), eos, guide)
        with torch.inference_mode():
            return shaper.probabilities(self.logits((*prompt, *output)), lambda _: ())[0]

    def law(
        self, prompt: Tokens, sampling: Sampling, length: int, written: Tokens = (), weight: float = 1.0
    ) -> dict[Tokens, float]:
        """Probability of every output, at most `length` tokens long, that begins with what is `written`."""
        return dict(self._grow(prompt, written[:length], weight, sampling, length))

    def _grow(
        self, prompt: Tokens, output: Tokens, weight: float, sampling: Sampling, length: int
    ) -> Iterator[tuple[Tokens, float]]:
        if len(output) == length or self.ended(output, sampling):
            yield output, weight
            return
        for token, chance in enumerate(self.next(prompt, output, sampling).tolist()):
            if chance > 0:
                yield from self._grow(prompt, (*output, token), weight * chance, sampling, length)

    def greedy(self, prompt: Tokens, sampling: Sampling, length: int) -> Tokens:
        """The most likely token after each prefix, by this sampling's penalties and bans."""
        output: Tokens = ()
        while len(output) < length and not self.ended(output, sampling):
            output = (*output, int(self.next(prompt, output, sampling).argmax()))
        return output

    def _read(self, output: Tokens, sampling: Sampling) -> tuple[Guide | None, bool]:
        """A guide that has read the output and nothing else, and whether the constraint ends the text there."""
        if sampling.constraint is None:
            return None, False
        guide, over = self._guides(sampling.constraint, frozenset(self.ends(sampling))), False
        for token in output:
            over = guide.advance(token)
        return guide, over

    def ended(self, output: Tokens, sampling: Sampling) -> bool:
        """Whether nothing follows the output."""
        return bool(output) and (output[-1] in self.ends(sampling) or self._read(output, sampling)[1])

    def ends(self, sampling: Sampling) -> Sequence[int]:
        """Tokens that end a text."""
        return (*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.model.info.eos))
