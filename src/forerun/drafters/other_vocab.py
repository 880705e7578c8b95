"""A second model with a tokenizer of its own guesses: bytes are what the two vocabularies share (2502.05202).

`slem` (string-level exact match) lets it write its likeliest continuation and reads that anew in the target's tokens,
which are chosen. `tli` (token-level intersection) draws from its distribution over the tokens that both have. `slrs`
(string-level rejection sampling) draws from psi: each of its tokens gives its probability to the first of the target's
tokens that write the same. What is drawn reports its q, so that any verifier is exact.
Does not: sum psi over several draft tokens in a row, which takes a pass for each of them; use penalties or bans with
`slem`; guess special tokens with it, or those that only one of the two names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite
from typing import TypeGuard

import numpy as np
import torch

from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError, unknown
from forerun.host import send
from forerun.look import Drawn, Likeliest, Look, Origin
from forerun.reader import leave
from forerun.sampling import Shaper
from forerun.types import Context, Dist, Draft, Facts, Need, Output, Setup, Spelling, Work

METHODS = ("slem", "tli", "slrs")
LOWEST = -1e4  # a logit of no weight; where a vocabulary has no other, it still gives a distribution
WINDOW = 32  # of the target's tokens: the end of the text, which is read anew at every draft


@dataclass(eq=False)
class _Reader:
    """What the draft model has read of one request."""

    slot: int
    settled: list[int]  # draft tokens of the text's beginning, which is not read anew
    at: int = 0  # how many of the target's tokens these stand for
    read: list[int] = field(default_factory=list)  # draft tokens in the cache
    marks: list[tuple[int, int]] = field(default_factory=list)  # after each pass: tokens in the cache, its checkpoint


@dataclass(eq=False)
class _Growth:
    """A draft while it grows."""

    context: Context
    budget: int
    ids: list[int]  # the text in draft tokens, then what is drafted
    start: int  # of the latter
    tokens: list[int] = field(default_factory=list)
    q: list[Dist | None] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)  # per drafted token, of either kind
    alive: bool = True
    error: str | None = None


class OtherVocabDrafter(Drafter):
    """Speculative decoding with a small model of another vocabulary."""

    facts = Facts(
        keys=("heterogeneous-vocab",),
        paper="2502.05202",
        needs=frozenset({Need.SECOND_MODEL}),
        draws=True,
        evidence="docs/results/README.md#other-vocab",
    )

    @dataclass(frozen=True)
    class Options:
        """`model`: a folder; `depth`: draft tokens per draft; `method`: slem, tli or slrs.

        `dtype` is the small model's precision: rounding it changes what is guessed, never what comes out.
        """

        model: str = ""
        depth: int = 4
        method: str = "slem"
        dtype: str = "fastest"
        cache: str = "contiguous"

        def __post_init__(self) -> None:
            if self.method not in METHODS:
                raise ConfigError(unknown("drafter 'other-vocab'", "method", self.method, METHODS))

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.eos, self.vocab = options, setup.eos, setup.vocab
        folder = options.model or setup.companion
        if not folder:
            message = "drafter 'other-vocab' needs a model, and the target's folder names none"
            raise ConfigError(f"{message}; give other-vocab:model=FOLDER.")
        self.target, self.own = setup.open_spelling(""), setup.open_spelling(folder)
        self.runner = setup.open_model(folder, options.cache, options.dtype)
        self.links = send(self._links() if options.method != "slem" else [[], []], setup.device)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(model="toy:100:a+b+c+ab+ca", depth=2, method="slrs")

    def _links(self) -> list[list[int]]:
        """Draft tokens, and for each the target's token that gets its probability."""
        links: dict[int, int] = {}
        for token, piece in enumerate(self.own.pieces):
            if piece is not None and piece in self.target.ids:
                links[token] = self.target.ids[piece]
            elif self.options.method == "slrs" and isinstance(piece, bytes):
                links.update((token, first) for first in self._faithful(piece)[:1])
        if not links:
            message = f"the drafter {self.runner.info.name!r} shares no token with the target"
            raise ConfigError(f"{message}; use method=slem, or a drafter for the same kind of text.")
        return [list(links), list(links.values())]

    def _faithful(self, data: bytes) -> list[int]:
        """The target's tokens for these bytes, as far as they write just these."""
        tokens: list[int] = []
        for token in self.target.encode(data):
            piece = self.target.pieces[token]
            if not isinstance(piece, bytes) or not data.startswith(piece):
                break
            tokens.append(token)
            data = data.removeprefix(piece)
        return tokens

    def start(self, context: Context) -> _Reader:
        slot = int(self.runner.cache.open(())[0])
        return _Reader(slot, list(self.own.begin), marks=[(0, self.runner.cache.checkpoint(slot))])

    def pause(self, context: Context) -> None:
        leave(self.runner, context.state)

    def resume(self, context: Context) -> None:
        reader: _Reader = context.state
        reader.slot, reader.read = int(self.runner.cache.open(())[0]), []
        reader.marks = [(0, self.runner.cache.checkpoint(reader.slot))]

    def stop(self, context: Context) -> None:
        leave(self.runner, context.state)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        growths = [self._begin(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        for _ in range(self.options.depth):
            active = [g for g in growths if g.alive and self._room(g)]
            if not active:
                break
            outputs = self.runner.run([self._work(g) for g in active])
            for growth, output in zip(active, outputs, strict=True):
                self._settle(growth)
                self._extend(growth, output)
        return [self._finish(g) for g in growths]

    # reading

    def _begin(self, context: Context, budget: int) -> _Growth:
        ids = self._text(context) if budget > 0 else []
        growth = _Growth(context, budget, ids, len(ids), alive=bool(ids))
        if growth.alive:
            self._rewind(context.state, ids)
        return growth

    def _text(self, context: Context) -> list[int]:
        """The committed text in draft tokens; all but its end is settled, so that a step costs no more as it grows."""
        reader: _Reader = context.state
        window = context.tokens[reader.at :]
        if len(window) > 2 * WINDOW:
            cut = self._cut(window)
            reader.settled += self._retold(window[:cut], first=reader.at == 0)
            reader.at, window = reader.at + cut, window[cut:]
        return reader.settled + self._retold(window, first=reader.at == 0)

    def _cut(self, window: Sequence[int]) -> int:
        """Where a window may be cut: before a word or a special token, where tokenizers cut as well; else anywhere."""
        last = len(window) - WINDOW
        for at in range(last, last - WINDOW, -1):
            piece = _piece(self.target, window[at])
            if isinstance(piece, str) or (piece or b"").startswith(b" "):
                return at
        return last

    def _retold(self, tokens: Sequence[int], *, first: bool) -> list[int]:
        """The target's tokens in draft tokens. Where only one side has a special token, it is left out."""
        ids: list[int] = []
        for number, part in enumerate(self.target.spell(tokens)):
            leads = first and number == 0
            if isinstance(part, bytes):
                ids += self.own.encode(part.removeprefix(self.target.lead) if leads else part, first=leads)
            elif part in self.own.ids and not (leads and [self.own.ids[part]] == list(self.own.begin)):
                ids.append(self.own.ids[part])
        return ids

    def _rewind(self, reader: _Reader, ids: list[int]) -> None:
        """Let the cache forget what is not the beginning of `ids`; at least the last of these is read anew."""
        same = min(len(reader.read), len(ids) - 1)
        while reader.read[:same] != ids[:same]:
            same -= 1
        while reader.marks[-1][0] > same:
            reader.marks.pop()
        length, mark = reader.marks[-1]
        self.runner.cache.rollback(reader.slot, mark)
        del reader.read[length:]

    def _room(self, growth: _Growth) -> bool:
        """Whether the small model can read what is new; its context may be the shorter one."""
        reader: _Reader = growth.context.state
        growth.alive = self.runner.cache.reserve(reader.slot, len(growth.ids) - len(reader.read))
        return growth.alive

    def _work(self, growth: _Growth) -> Work:
        reader: _Reader = growth.context.state
        new = tuple(growth.ids[len(reader.read) :])
        return Work(reader.slot, new, logits=(len(new) - 1,))

    def _settle(self, growth: _Growth) -> None:
        """The pass is done; what was drafted is kept too, until the text turns out to be another."""
        reader, cache = growth.context.state, self.runner.cache
        new = growth.ids[len(reader.read) :]
        cache.keep(reader.slot, new, range(len(new)))
        reader.read += new
        reader.marks.append((len(reader.read), cache.checkpoint(reader.slot)))

    # guessing

    def _extend(self, growth: _Growth, output: Output) -> None:
        """One token more."""
        growth.alive = False
        if not all(map(isfinite, output.peak)):
            growth.error = "the draft model returned logits that are not finite; check its weights and dtype."
        elif self.options.method == "slem":
            self._choose(growth, output)
        else:
            self._draw(growth, output)

    def _choose(self, growth: _Growth, output: Output) -> None:
        """The draft model's likeliest token."""
        token = output.best[0]
        piece = _piece(self.own, token)
        if piece and isinstance(piece, bytes):
            growth.ids.append(token)
            growth.chances.append(_chance(output, output.peak[0]))
            growth.alive = True

    def _draw(self, growth: _Growth, output: Output) -> None:
        """One of the target's tokens, drawn from q; the most likely one when the request is greedy."""
        look = self._look(growth)
        look.read(Output(self._linked(output), (), ()))
        child = look.child(0)
        if child is None:  # bans leave nothing that could be drafted here: the draft ends
            return
        growth.tokens.append(child.token)
        growth.q.append(child.q)
        growth.chances.append(child.confidence)
        follow = self._followed(child.token)
        growth.ids += follow
        growth.alive = bool(follow) and len(growth.tokens) < growth.budget

    def _look(self, growth: _Growth) -> Look:
        """What is asked of the distribution after the newest token."""
        context, last = growth.context, len(growth.tokens) - 1
        shaper = Shaper.of(context, self.eos)
        origin = Origin(shaper, context.rng, lambda node: tuple(growth.tokens[: node + 1]))
        if context.sampling.greedy:
            return Likeliest(origin, [last], 1, traits=False)
        return Drawn(origin, [last], 1, traits=False, again=False)

    def _linked(self, output: Output) -> torch.Tensor:
        """Logits over the target's vocabulary, as high as the draft model's: penalties look at their sign."""
        weights, (of, to) = (_real(output.logits) - output.peak[0]).exp(), self.links
        linked = weights.new_zeros(1, self.vocab).index_add_(1, to, weights[:, of]).log()
        return (linked + output.peak[0]).clamp_min_(LOWEST)

    def _followed(self, token: int) -> list[int]:
        """One of the target's tokens in draft tokens."""
        piece = _piece(self.target, token)
        if piece is not None and piece in self.own.ids:
            return [self.own.ids[piece]]
        return self.own.encode(piece) if isinstance(piece, bytes) else []

    def _finish(self, growth: _Growth) -> Draft:
        if self.options.method == "slem":
            self._reread(growth)
        tokens = tuple(growth.tokens[: growth.budget])
        drawn = tuple(growth.q) if any(q is not None for q in growth.q) else None
        columns = (tokens, tuple(range(-1, len(tokens) - 1)), drawn, tuple(growth.chances[: len(tokens)]))
        return Draft(*columns, source="other-vocab", error=growth.error)

    def _reread(self, growth: _Growth) -> None:
        """What was drafted in the target's tokens; the chance of each is that of its bytes."""
        drafted = growth.ids[growth.start :]
        sizes = [len(self.own.pieces[token] or b"") for token in drafted]
        surprise = np.cumsum(np.repeat(np.log(growth.chances) / sizes, sizes))
        growth.tokens = self._faithful(b"".join(filter(_is_text, self.own.spell(drafted))))
        ends = np.cumsum([len(self.target.pieces[token] or b"") for token in growth.tokens], dtype=np.int64)
        growth.chances = np.exp(np.diff(surprise[ends - 1], prepend=0)).tolist()


def _real(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _chance(output: Output, logit: float) -> float:
    """The probability that a logit stands for under the draft model."""
    peak = output.peak[0]
    mass = output.mass[0] if output.mass is not None else float((_real(output.logits) - peak).exp().sum())
    return exp(logit - peak) / mass


def _piece(of: Spelling, token: int) -> bytes | str | None:
    """What a token writes; logits may have rows that no token has."""
    return of.pieces[token] if token < len(of.pieces) else None


def _is_text(part: bytes | str) -> TypeGuard[bytes]:
    return isinstance(part, bytes)
