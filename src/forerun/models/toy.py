"""A model small enough to enumerate: the next token depends on the last two, in float64, by a fixed table.

It finds these two tokens in the cache (a token's id is its key, its position its value), among the entries that the
pass lets a row see; so a cache that rolls back, compacts or masks wrongly changes the distribution.
Does not: learn, or know a third token.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from forerun.caches.contract import Cache
from forerun.errors import ConfigError
from forerun.layers.padded import Padded, distances
from forerun.models.contract import Model, ModelInfo
from forerun.types import Floats, KVLayout, Pass, PassOutput, Segment

FLOOR = 0.025  # the least probability at small vocabularies, so that every branch is met


class ToyModel(Model):
    """p(next | last two tokens) = table[before last, last]; "before last" is `vocab` at the start of a text."""

    def __init__(
        self,
        vocab: int = 3,
        seed: int = 0,
        context_length: int = 64,
        eos: tuple[int, ...] = (),
        words: tuple[str, ...] = (),  # what the tokens write, in place of `vocab` letters
    ) -> None:
        vocab = len(words) or vocab
        if not 2 <= vocab <= 512:  # noqa: PLR2004 - the table has vocab^3 entries
            raise ConfigError(f"a toy model has a vocabulary of 2 to 512, not {vocab}; choose another.")
        rng = np.random.default_rng((seed, vocab))
        floor = min(FLOOR, 0.5 / vocab)
        self.table: Floats = floor + (1 - vocab * floor) * rng.dirichlet(np.ones(vocab), (vocab + 1, vocab))
        self.table /= self.table.sum(-1, keepdims=True)
        self._logits = torch.from_numpy(np.log(self.table))
        layout = KVLayout((1,), (1,), torch.float64, torch.device("cpu"))
        size, nbytes = 2 * vocab + 1, self.table.nbytes
        name = f"toy:{seed}:{'+'.join(words) or vocab}"
        self.words = words or tuple(chr(ord("a") + i) if i < 26 else chr(0x4E00 + i) for i in range(vocab))  # noqa: PLR2004
        self.info = ModelInfo(name, vocab, context_length, size, 1, layout, eos, None, nbytes, padded=True)

    def probs(self, context: Sequence[int]) -> Floats:
        """The distribution of the token after `context`, which has at least one token."""
        before = context[-2] if len(context) > 1 else self.info.vocab_size
        found: Floats = self.table[before, context[-1]]
        return found

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        if work.plan is None or 0 in work.plan.layers:
            pairs = self._all_pairs(work, cache)
        else:  # without its one layer the model sees a row's own token only
            pairs = torch.stack((torch.full_like(work.tokens, self.info.vocab_size), work.tokens), 1)
        hidden = dict.fromkeys(work.hidden, self._features(pairs)) if work.hidden else {}
        rows = pairs if work.logits is None else pairs[work.logits]
        if work.plan is not None and not work.plan.logits:
            rows = rows[:0]
        return PassOutput(self._logits[rows[:, 0], rows[:, 1]], hidden)

    def _all_pairs(self, work: Pass, cache: Cache) -> torch.Tensor:
        """The last two tokens of every row's own path [rows, 2], after the rows are stored."""
        heads = [part.to(torch.float64).view(-1, 1, 1) for part in (work.tokens, work.positions)]
        if work.grid is None:
            cache.write(0, work, *heads)
            at = work.positions.tolist()
            found = [pair for s in work.segments for pair in self._segment(at, s, cache)]
            return torch.tensor(found, dtype=torch.int64).view(-1, 2)
        attention = Padded(work.grid, distances(work.grid, work.positions), None, cache.rows)
        keys, values = (part[:, 0, :, 0].numpy() for part in attention.store(0, *heads))
        at = work.positions[work.grid.shown].view(len(keys), -1).tolist()
        sees = [lambda row, entry, chain=chain: chain[row][entry] for chain in attention.sees.tolist()]
        return torch.tensor(list(map(self._found, keys, values, at, sees))).flatten(0, 1)[work.grid.cells]

    def _segment(self, at: list[int], s: Segment, cache: Cache) -> list[list[int]]:
        """The last two tokens of every row's own path."""
        keys, values = (part[0, :, 0].numpy() for part in cache.read(0, s))
        at, before = at[s.start : s.start + s.rows], len(keys) - s.rows
        if s.mask is None:
            return self._found(keys, values, at, lambda row, entry: entry <= before + row)
        mask = s.mask.tolist()
        return self._found(keys, values, at, lambda row, entry: entry < s.past or mask[row][entry - s.past])

    def _found(self, keys: Floats, values: Floats, at: list[int], sees: Callable[[int, int], bool]) -> list[list[int]]:
        """What rows at `at` see one position back and at their own: [rows, 2], of entries with their keys and values.

        The start of the text where nothing matches, and nonsense where two do.
        """
        near, entries = np.flatnonzero(values >= min(at, default=0) - 1), dict[float, list[tuple[int, float]]]()
        for entry, value, key in zip(near.tolist(), values[near].tolist(), keys[near].tolist(), strict=True):
            entries.setdefault(value, []).append((entry, key))
        vocab, pairs = self.info.vocab_size, list[list[int]]()
        for row, position in enumerate(at):
            both = ([key for e, key in entries.get(place, ()) if sees(row, e)] for place in (position - 1, position))
            pairs.append([(int(sum(found)) + len(found) - 1) % vocab if found else vocab for found in both])
        return pairs

    def _features(self, pairs: torch.Tensor) -> torch.Tensor:
        """One-hot before-last, then one-hot last: [rows, 2 vocab + 1]."""
        vocab = self.info.vocab_size
        parts = (torch.nn.functional.one_hot(pairs[:, i], vocab + 1 - i) for i in (0, 1))
        return torch.cat(list(parts), 1).to(torch.float64)


def toy_by_name(name: str) -> ToyModel:
    """`toy:SEED`, `toy:SEED:VOCAB`, or `toy:SEED:WORDS` with what its tokens write, as in toy:0:a+b+ab."""
    parts = name.split(":", 2)[1:]  # words may have colons
    words = tuple(parts.pop().split("+")) if len(parts) == 2 and "+" in parts[1] else ()  # noqa: PLR2004
    sound = all(part.isdecimal() and len(part) < 10 for part in parts) and len(set(words) - {""}) == len(words)  # noqa: PLR2004
    if not 1 <= len(parts) <= 2 or not sound:  # noqa: PLR2004
        raise ConfigError(f"{name!r} is not a toy model; write toy:SEED or toy:SEED:VOCAB, as in toy:0:3.")
    return ToyModel(vocab=int(parts[1]) if len(parts) > 1 else 3, seed=int(parts[0]), words=words)
