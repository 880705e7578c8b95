"""Split, tokenise and pack documents; draw batches from them by weight.

A batch is a pure function of (seed, step), so that a resumed run sees exactly what an uninterrupted one sees.
Does not: mask attention between documents packed into one sequence; weigh the tokens of a sequence.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, numpy
from tokenizers import Tokenizer

from forerun.errors import TrainError
from forerun.files import write_whole
from forerun.train import sources
from forerun.train.sources import Document
from forerun.train.tokenizer import END_OF_TEXT, END_OF_TURN, plain, special_id

# One document in HOLDOUT goes to validation.
HOLDOUT = 80
# Share of sequences that start where a document does.
ALIGNED = 0.5
# Share of the ends of lines at which a text is cut before it is tokenised.
CUT = 0.05


def default_folder() -> Path:
    """`../shared/data`, beside the checkout; an installed wheel has none and asks for --data."""
    return Path(__file__).resolve().parents[3].parent / "shared" / "data"


def held_out(document: Document) -> bool:
    """Decided by the text alone, so both forms of a story fall on the same side."""
    return sources.digest("split:" + document.key) % HOLDOUT == 0


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Training and validation documents; validation is never empty."""
    chosen = {d.key for d in documents if held_out(d)}
    chosen = chosen or {min((d.key for d in documents), key=sources.digest)}
    return [d for d in documents if d.key not in chosen], [d for d in documents if d.key in chosen]


def texts(documents: Iterable[Document]) -> Iterable[str]:
    """The bare texts, for training a tokenizer."""
    return (content for document in documents for _, content in document.turns)


@dataclass(frozen=True)
class Packed:
    """Documents of one source end to end, each followed by the end-of-text token."""

    ids: np.ndarray  # [tokens] uint16
    starts: np.ndarray  # [documents] int64

    def window(self, start: int, length: int) -> np.ndarray:
        """`length` tokens from `start`, round the end of the array if need be."""
        return np.take(self.ids, np.arange(start, start + length), mode="wrap")


def pack(documents: list[Document], tokenizer: Tokenizer) -> Packed:
    """Tokenise and lay end to end; special tokens come from the turns only, never from a text."""
    if tokenizer.get_vocab_size() > np.iinfo(np.uint16).max:
        size = tokenizer.get_vocab_size()
        message = f"a vocabulary of {size} tokens does not fit packed uint16 data; use at most 65535."
        raise TrainError(message)
    texts = [cut(c) if role == sources.TEXT else [c] for d in documents for role, c in d.turns]
    encoded = iter(plain(tokenizer).encode_batch([part for parts in texts for part in parts], add_special_tokens=False))
    contents = iter([token for _ in parts for token in next(encoded).ids] for parts in texts)
    pieces = [np.array(document_ids(d, contents, tokenizer), dtype=np.uint16) for d in documents]
    return joined(pieces)


def joined(pieces: list[np.ndarray]) -> Packed:
    """Documents of token ids, uint16, end to end."""
    starts = np.cumsum([0, *(len(p) for p in pieces[:-1])])
    return Packed(np.concatenate(pieces), starts.astype(np.int64))


def save(packed: Packed, path: Path) -> None:
    """Write a safetensors file: ids, uint16 [tokens], and starts, int64 [documents]. TrainError where it cannot be."""
    content = numpy.save({"ids": packed.ids, "starts": packed.starts})
    write_whole(path, content, "free space there, or name another file", TrainError)


def load(path: Path) -> Packed:
    """What `save` wrote."""
    try:
        held = numpy.load_file(path)
        return Packed(held["ids"], held["starts"])
    except (OSError, SafetensorError, KeyError) as problem:
        message = f"no written texts can be read from {str(path)!r} ({problem}); write them with forerun train written."
        raise TrainError(message) from problem


def cut(text: str) -> list[str]:
    """Cut at the ends of some lines; the parts are tokenised apart.

    A prompt that ends where a line does often ends inside a token, which whole texts never show.
    """
    ends = [match.start() for match in re.finditer(r"(?<=\S)\n", text)]
    chance = np.random.default_rng(sources.digest(text)).random(len(ends)) < CUT
    places = [0, *(end for end, yes in zip(ends, chance, strict=True) if yes), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


def document_ids(document: Document, contents: Iterable[list[int]], tokenizer: Tokenizer) -> list[int]:
    """Ids of one document; takes its contents from the shared iterator."""
    ids: list[int] = []
    for (role, _), content in zip(document.turns, contents, strict=False):
        if role == sources.TEXT:
            ids += content
        else:
            ids += [special_id(tokenizer, f"<|{role}|>"), *content, special_id(tokenizer, END_OF_TURN)]
    return [*ids, special_id(tokenizer, END_OF_TEXT)]


@dataclass(frozen=True)
class Sampler:
    """Draws sequences from packed sources by weight."""

    packed: dict[str, Packed]
    weights: dict[str, float]
    seed: int

    def batch(self, step: int, num_sequences: int, length: int) -> torch.Tensor:
        """[num_sequences, length + 1] token ids: inputs and, shifted by one, targets."""
        rng = np.random.default_rng([self.seed, step])
        names = list(self.weights)
        share = np.array([self.weights[n] for n in names])
        chosen = rng.choice(len(names), size=num_sequences, p=share / share.sum())
        rows = [self.draw(rng, self.packed[names[i]], length + 1) for i in chosen]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def draw(self, rng: np.random.Generator, packed: Packed, length: int) -> np.ndarray:
        """Half of all sequences start with a document: a prompt does, and random offsets almost never do."""
        offset = int(rng.integers(len(packed.ids)))
        if rng.random() < ALIGNED:
            index = int(np.searchsorted(packed.starts, offset, side="right")) - 1
            offset = int(packed.starts[index])
        return packed.window(offset, length)


def windows(packed: Packed, length: int, most: int) -> torch.Tensor:
    """Up to `most` consecutive windows for validation, [n, length + 1]; a short source wraps round."""
    count = max(1, min(most, (len(packed.ids) - 1) // length))
    rows = np.stack([packed.window(i * length, length + 1) for i in range(count)])
    return torch.from_numpy(rows.astype(np.int64))
