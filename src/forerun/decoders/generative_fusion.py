"""Two models with tokenizers of their own write one text, fused in bytes (generative fusion decoding, 2405.14259).

A token x of the target has the weight p(x)^(1 - share) P(x)^share. P is the probability that what the other model
writes next begins with the bytes of x: that it writes the tokens c1 ... cm which its tokenizer makes of them, or, after
some of these, one token that covers all the remaining bytes and goes on. Only the target's `top` likeliest tokens after
each prefix are fused, as the beams of the paper are; of a token that it has no bytes for, the other model's word is the
target's. With an exact verifier the law is exactly this one: the proof enumerates it.
Does not: search with beams; add up every way to cut the same bytes into tokens, which takes a pass for each; let the
other model cut the text by itself (it reads each of the target's tokens in its own, one after the other); wait for a
context longer than the other model's, where the target writes alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from math import inf, log, nan
from typing import Any

import numpy as np
import torch

from forerun.decoders.contract import FusedDecoder, Parts
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError
from forerun.host import fetch
from forerun.reader import Page
from forerun.sheet import Ahead
from forerun.types import Draft, Facts, Floats, Need, Runner, Setup, Spelling, Work

UNLIKELY = 1e4  # nats below: probability zero, and yet in the target's order where bans leave nothing else
_WHO = "decoder 'generative-fusion'"


class GenerativeFusionDecoder(FusedDecoder):
    """Exact for the law of the two together, and not the target's own."""

    facts = Facts(
        keys=("generative-fusion",),
        paper="2405.14259",
        needs=frozenset({Need.SECOND_MODEL}),
        exact=False,
        law="the target's likeliest tokens, weighted by what another model says of their bytes",
        evidence="docs/results/README.md#fidelity-steps-and-bytes",
    )

    @dataclass(frozen=True)
    class Options:
        """`other`: a folder ("" takes the companion); `share`: its part, 0 to 1; `top`: tokens that are weighed."""

        other: str = ""
        share: float = 0.2
        top: int = 5
        dtype: str = "auto"

        def __post_init__(self) -> None:
            if not 0 <= self.share <= 1 or self.top < 1:
                given = f"share is {self.share} and top is {self.top}"
                raise ConfigError(f"{_WHO}: {given}; give a share from 0 to 1, and 1 or more tokens.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), replace(parts, ahead=Ahead.NOTHING))
        self.options, self.readers = options, [ByteReader(parts.setup, options)]

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(other="toy:100:a+b+c+ab+ca", share=0.5, top=2)

    def fuse(self, rows: Sequence[torch.Tensor], draft: Draft, memory: Any) -> tuple[torch.Tensor, Sequence[Any]]:  # noqa: ANN401
        own, heard = torch.log_softmax(rows[0].to(rows[1].dtype), -1), rows[1]
        both = (1 - self.options.share) * own + self.options.share * torch.where(heard.isnan(), own, heard)
        return torch.where(heard == -inf, own - UNLIKELY, both), [None] * len(own)


@dataclass(frozen=True, slots=True)
class Word:
    """One of the target's tokens in those of the other model."""

    ids: tuple[int, ...]  # never none
    spans: tuple[tuple[int, int], ...] = ((0, 0),)  # of `Ladder.order`, per id: what covers all from there, and more
    known: bool = True  # these tokens write what the target's does


class Ladder:
    """The target's tokens as words of another tokenizer."""

    def __init__(self, target: Spelling, other: Spelling) -> None:
        self.target, self.other = target, other
        found = sorted((piece, i) for i, piece in enumerate(other.pieces) if isinstance(piece, bytes) and piece)
        self.pieces = [piece for piece, _ in found]
        self.order = np.array([i for _, i in found], np.int64)
        self.over = b"\xff" * (1 + max(map(len, self.pieces), default=0))  # comes after every piece
        self.blank = (*other.begin, 0)[:1]  # what stands for a token that cannot be written
        self.word = lru_cache(maxsize=1 << 16)(self._word)

    def _word(self, token: int) -> Word:
        piece = self.target.pieces[token] if token < len(self.target.pieces) else None
        if isinstance(piece, bytes):
            ids = tuple(self.other.encode(piece))
            parts = [part for part in (self.other.pieces[i] for i in ids) if isinstance(part, bytes)]
            if ids and b"".join(parts) == piece:
                starts = accumulate(map(len, parts[:-1]), initial=0)
                return Word(ids, tuple(self._span(piece[start:]) for start in starts))
            return Word(ids or self.blank, known=False)
        at = self.other.ids.get(piece) if piece is not None else None
        return Word((at,)) if at is not None else Word(self.blank, known=False)

    def _span(self, rest: bytes) -> tuple[int, int]:
        return bisect_right(self.pieces, rest), bisect_right(self.pieces, rest + self.over)


@dataclass(eq=False)
class _Leaf:
    """What is read of one request in one pass: chains of entries, and who wants a row behind which."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    nodes: dict[int, list[int]] = field(default_factory=dict)  # entries of a node; of the text for -1
    tails: list[list[tuple[int, Word, list[int]]]] = field(default_factory=list)  # per row: token, word, its rows

    def grow(self, parent: int, ids: Sequence[int]) -> list[int]:
        """A chain of entries behind another."""
        first = len(self.tokens)
        self.tokens += ids
        self.parents += [parent, *range(first, first + len(ids) - 1)][: len(ids)]
        return list(range(first, first + len(ids)))


class ByteReader:
    """The other model: log P of the target's likeliest tokens, NaN of those it cannot write, -inf of all others."""

    def __init__(self, setup: Setup, options: GenerativeFusionDecoder.Options) -> None:
        folder = options.other or setup.companion
        if not folder:
            raise ConfigError(f"{_WHO} needs another model, and the target's folder names none; give model=FOLDER.")
        self.ladder = Ladder(setup.open_spelling(""), setup.open_spelling(folder))
        self.runner: Runner = setup.open_model(folder, "contiguous", options.dtype)
        self.top = min(options.top, setup.vocab)
        self.at: dict[int, int] = {}  # tokens of the target's that a slot holds

    def open(self) -> int:
        slot = int(self.runner.cache.open(())[0])
        self.at[slot] = 0
        return slot

    def close(self, slot: int) -> None:
        del self.at[slot]
        self.runner.cache.close(slot)

    def read(self, pages: Sequence[Page]) -> list[torch.Tensor]:
        leaves = [self._leaf(page) for page in pages]
        fits = [
            self.runner.cache.reserve(page.slot, len(leaf.tokens)) for page, leaf in zip(pages, leaves, strict=True)
        ]
        works = [self._work(p.slot, leaf) for p, leaf, fit in zip(pages, leaves, fits, strict=True) if fit]
        outputs = iter(self.runner.run(works) if works else [])
        found = []
        for page, leaf, fit in zip(pages, leaves, fits, strict=True):
            said = np.full(page.said.shape, -inf)
            if fit:
                self._hear(said, leaf, next(outputs).logits)
            found.append(torch.from_numpy(said).to(page.said.device))
        return found

    def _text(self, page: Page) -> list[int]:
        """What is new of the text in the other model's tokens; it begins as this model's texts do."""
        at, begin = self.at[page.slot], tuple(self.ladder.other.begin)
        words = [self.ladder.word(token).ids for token in page.text[at:]]
        leads = begin if at == 0 and words[0] != begin else ()
        return [*leads, *(i for ids in words for i in ids)]

    def _leaf(self, page: Page) -> _Leaf:
        leaf, draft = _Leaf(), page.draft
        leaf.nodes[-1] = leaf.grow(-1, self._text(page))
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            leaf.nodes[node] = leaf.grow(leaf.nodes[parent][-1], self.ladder.word(token).ids)
        likeliest = fetch(page.said.topk(self.top, -1).indices).tolist()
        for node, tokens in zip(range(-1, len(draft)), likeliest, strict=True):
            last = leaf.nodes[node][-1]
            words = [(token, self.ladder.word(token)) for token in tokens]
            leaf.tails.append([(token, word, [last, *leaf.grow(last, word.ids[:-1])]) for token, word in words])
        return leaf

    def _work(self, slot: int, leaf: _Leaf) -> Work:
        wanted = range(leaf.nodes[-1][-1], len(leaf.tokens))  # of the text only its end
        return Work(slot, tuple(leaf.tokens), tuple(leaf.parents), logits=tuple(wanted))

    def _hear(self, said: Floats, leaf: _Leaf, logits: torch.Tensor) -> None:
        """Log P of every tail, into `said`."""
        p = fetch(torch.softmax(logits.double(), -1))
        ranks = np.pad(p[:, self.ladder.order].cumsum(-1), ((0, 0), (1, 0)))
        first = leaf.nodes[-1][-1]
        for row, tails in enumerate(leaf.tails):
            for token, word, entries in tails:
                said[row, token] = _log_chance(p, ranks, word, [entry - first for entry in entries])

    def keep(self, page: Page, path: Sequence[int]) -> None:
        """What was read of the text stays, and of the draft the nodes of `path`; nothing where nothing was read."""
        if not self.runner.cache.unjudged(page.slot):
            return
        ids = self._text(page)
        words = [self.ladder.word(token).ids for token in page.draft.tokens]
        ends = list(accumulate(map(len, words), initial=len(ids)))
        entries = [*range(len(ids)), *(entry for node in path for entry in range(ends[node], ends[node + 1]))]
        self.runner.cache.keep(page.slot, [*ids, *(i for node in path for i in words[node])], entries)
        self.at[page.slot] = len(page.text) + len(path)


def _log_chance(p: Floats, ranks: Floats, word: Word, rows: Sequence[int]) -> float:
    """That what is written begins with a word; row i of `rows` is behind its first i tokens."""
    if not word.known:
        return nan
    total, before = 0.0, 1.0
    for row, token, (low, high) in zip(rows, word.ids, word.spans, strict=True):
        total += before * float(ranks[row, high] - ranks[row, low])
        before *= float(p[row, token])
    return log(total + before) if total + before > 0 else -inf
