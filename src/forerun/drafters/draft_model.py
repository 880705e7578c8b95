"""A second, smaller model guesses: a sampled chain, or a tree of its most likely tokens.

Chains are drawn from the small model's own distribution q, shaped by the request's sampling (2211.17192 alg. 1,
2302.01318 alg. 2). With width > 1 each level keeps the `width` likeliest continuations by cumulative probability,
as in the drafts of EAGLE-2 (2406.16858); these are chosen, not drawn.
Does not: translate between tokenizers; both models must share one vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch

from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError, RequestError
from forerun.host import fetch
from forerun.rng import Purpose
from forerun.sampling import STUCK, Shaper
from forerun.sheet import Sheet, Start
from forerun.types import Context, Dist, Draft, Facts, Floats, Ints, Need, Outcome, Output, Setup, Work


@dataclass(eq=False)
class _Growth:
    """A draft while it grows."""

    context: Context
    budget: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    q: list[Dist | None] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)  # probability of the whole path down to a node
    level: list[int] = field(default_factory=list)  # nodes not yet extended; -1 is the root
    error: str | None = None  # why it cannot grow any further

    def path(self, node: int) -> tuple[int, ...]:
        found: list[int] = []
        while node >= 0:
            found.append(self.tokens[node])
            node = self.parents[node]
        return tuple(reversed(found))

    def add(self, parent: int, token: int, q: Dist | None, probability: float) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.q.append(q)
        self.confidence.append(probability)
        self.reach.append(probability * (self.reach[parent] if parent >= 0 else 1.0))


class DraftModelDrafter(Drafter):
    """Speculative decoding with a small model of the same vocabulary."""

    facts = Facts(
        keys=("speculative-decoding", "speculative-sampling"),
        paper="2211.17192",
        needs=frozenset({Need.SECOND_MODEL}),
        draws=True,
        evidence="docs/results/README.md#speed",
    )

    @dataclass(frozen=True)
    class Options:
        """`model`: a folder ("" takes the one that the target's folder names); width 1 is a chain.

        `dtype` is the small model's precision: rounding it changes what is guessed, never what comes out.
        """

        model: str = ""
        depth: int = 2
        width: int = 1
        dtype: str = "fastest"
        threshold: float = 0.0  # stop where a path's probability falls below this
        cache: str = "contiguous"

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.eos = options, setup.eos
        folder = options.model or setup.companion
        if not folder:
            message = "drafter 'draft-model' needs a model, and the target's folder names none"
            raise ConfigError(f"{message}; give draft-model:model=FOLDER.")
        self.runner = setup.open_model(folder, options.cache, options.dtype)
        if self.runner.info.vocab_size != setup.vocab:
            sizes = f"{self.runner.info.vocab_size} tokens and the target {setup.vocab}"
            remedy = f"use one that shares the target's tokenizer, or drafter='other-vocab:model={folder}'"
            raise ConfigError(f"the drafter {folder!r} has {sizes}; {remedy}.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(model="toy:100", depth=2)

    def start(self, context: Context) -> int:
        return int(self.runner.cache.open(())[0])  # the state is a slot of the small model's cache

    def stop(self, context: Context) -> None:
        self.runner.cache.close(context.state)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        growths = [_Growth(context, budget, level=[-1]) for context, budget in zip(batch, budgets, strict=True)]
        active = [g for g in growths if g.budget > 0 and self._room(g.context)]
        if active and self._blind(active):
            self._follow(active)
            return [self._finish(g) for g in growths]
        for depth in range(self.options.depth):
            if not active:
                break
            asks = [self._ask(g, depth) for g in active]
            works = [self._work(g, depth, ask) for g, ask in zip(active, asks, strict=True)]
            outputs = self.runner.run(works)
            for growth, ask, output in zip(active, asks, outputs, strict=True):
                if depth == 0:
                    self._settle(growth)
                with suppress(RequestError):  # bans leave nothing that could be drafted here: the draft ends
                    self._extend(growth, ask, output)
            active = [g for g in active if g.level and len(g.tokens) < g.budget]
        return [self._finish(g) for g in growths]

    def _blind(self, active: Sequence[_Growth]) -> bool:
        """Whether chains can grow on the device: nothing that the host decides depends on a drafted token."""
        if not self.runner.follows or self.options.width > 1 or self.options.threshold > 0:
            return False
        sheets = [Sheet(g.context, eos=self.eos, start=Start(Purpose.DRAFT)) for g in active]
        return not any(sheet.shaper.bends or (not sheet.greedy and None in sheet.numbers) for sheet in sheets)

    def _follow(self, active: Sequence[_Growth]) -> None:
        """Whole chains, pass after pass, of which the host learns at the end."""
        asked: list[list[tuple[_Growth, Sheet]]] = []

        def steps() -> Iterator[list[Work]]:
            for depth in range(self.options.depth):
                growing = [g for g in active if g.budget > depth]
                if not growing:
                    return
                sheets = [Sheet(g.context, eos=self.eos, start=Start(Purpose.DRAFT, depth)) for g in growing]
                asked.append(list(zip(growing, sheets, strict=True)))
                yield [self._link(g, depth, sheet) for g, sheet in asked[-1]]
                if depth == 0:
                    for growth in growing:
                        self._settle(growth)

        for pairs, outputs in zip(asked, self.runner.follow(steps()), strict=True):
            for (growth, sheet), output in zip(pairs, outputs, strict=True):
                if growth.level:
                    self._extend(growth, sheet, output)

    def _link(self, growth: _Growth, depth: int, sheet: Sheet) -> Work:
        """The work of one depth, whose token only the device knows from depth 1 on."""
        if depth == 0:
            return self._work(growth, depth, sheet)
        ask, parents = sheet if sheet.worthwhile else None, tuple(range(-1, depth - 1))
        return Work(growth.context.state, (0,), parents, depth - 1, logits=(0,), ask=ask)

    def _room(self, context: Context) -> bool:
        """Whether the small model can read what is new and then a whole draft; its context may be the shorter one."""
        slot, cache = context.state, self.runner.cache
        cache.keep(slot, (), ())  # a draft that was never judged
        nodes = self.options.depth * self.options.width
        return bool(cache.reserve(slot, len(context.tokens) - cache.length(slot) + nodes))

    def _work(self, growth: _Growth, depth: int, asked: "Sheet | _Likeliest") -> Work:
        """Depth 0 reads what was committed since the last draft; later depths read the newest level of nodes."""
        slot, ask = growth.context.state, asked if asked.worthwhile else None
        if depth == 0:
            tokens = tuple(growth.context.tokens[self.runner.cache.length(slot) :])
            return Work(slot, tokens, logits=(len(tokens) - 1,), ask=ask)
        base = growth.level[0]
        rows = tuple(growth.tokens[base:])
        return Work(slot, rows, tuple(growth.parents), base, logits=tuple(range(len(rows))), ask=ask)

    def _ask(self, growth: _Growth, depth: int) -> "Sheet | _Likeliest":
        """What must be known of the logits."""
        if self.options.width > 1:
            return _Likeliest(growth, self.eos, self.options.width)
        return Sheet(growth.context, eos=self.eos, start=Start(Purpose.DRAFT, depth, tuple(growth.tokens)))

    def _settle(self, growth: _Growth) -> None:
        """What depth 0 read is committed text."""
        slot, cache = growth.context.state, self.runner.cache
        read = growth.context.tokens[cache.length(slot) :]
        cache.keep(slot, read, range(len(read)))

    def _extend(self, growth: _Growth, ask: "Sheet | _Likeliest", output: Output) -> None:
        """Add one level below the nodes whose output this is."""
        level, growth.level = growth.level, []
        if not all(map(isfinite, output.peak)):
            growth.error = "the draft model returned logits that are not finite; check its weights and dtype."
            return
        first = len(growth.tokens)
        if isinstance(ask, Sheet):
            self._draw(growth, level[0], ask, output)
        else:
            self._widen(growth, level, ask.read(_answers(ask, output)))
        alive = range(first, len(growth.tokens))
        if min((growth.reach[n] for n in alive), default=1.0) >= self.options.threshold or self.options.width > 1:
            growth.level = list(alive)

    def _draw(self, growth: _Growth, parent: int, sheet: Sheet, output: Output) -> None:
        """One token of a chain: drawn from q, or the most likely one when the request is greedy."""
        if output.mass is not None and not sheet.worthwhile:
            growth.add(parent, output.best[0], None, 1 / output.mass[0])
            return
        found = sheet.read(_answers(sheet, output))
        if sheet.greedy:
            growth.add(parent, found.best[0], None, found.chances[0])
            return
        q = found[-1]
        token = growth.context.rng.categorical(q, sheet.start.purpose, sheet.start.depth)
        growth.add(parent, token, q, q.prob(token))

    def _widen(self, growth: _Growth, level: list[int], found: tuple[Ints, Floats]) -> None:
        """The likeliest continuations of a level by cumulative probability; ties go to the lowest id."""
        width = min(self.options.width, growth.budget - len(growth.tokens))
        tokens, chances = (part[:, :width] for part in found)
        reach = np.array([growth.reach[n] if n >= 0 else 1.0 for n in level])[:, None] * chances
        best = np.argsort(-reach, axis=None, kind="stable")[:width]
        for row, column in sorted(divmod(int(i), reach.shape[1]) for i in best):
            if reach[row, column] >= self.options.threshold:
                growth.add(level[row], int(tokens[row, column]), None, float(chances[row, column]))

    def _finish(self, growth: _Growth) -> Draft:
        drawn = tuple(growth.q) if any(q is not None for q in growth.q) else None
        columns = (tuple(growth.tokens), tuple(growth.parents), drawn, tuple(growth.confidence))
        return Draft(*columns, source="draft-model", error=growth.error)

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        """Keep the accepted nodes that the small model has read; the rest vanishes from its cache."""
        cache = self.runner.cache
        for context, outcome in zip(batch, outcomes, strict=True):
            slot = context.state
            if outcome.draft is not None and outcome.verdict is not None:
                read = [node for node in outcome.verdict.path if node < cache.unjudged(slot)]
                cache.keep(slot, [outcome.draft.tokens[node] for node in read], read)


class _Likeliest:
    """A `Question`: the likeliest tokens after every node of a level, the lowest ids first where several are."""

    worthwhile = True

    def __init__(self, growth: _Growth, eos: tuple[int, ...], width: int) -> None:
        context = growth.context
        self.shaper = Shaper(context.sampling, context.tokens, context.prompt_length, eos)
        self.paths, self.width = [growth.path(node) for node in growth.level], width

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        bent, stuck = self.shaper.bent(logits, self.paths.__getitem__)
        p = torch.softmax(bent.double(), -1)
        order = torch.sort(p, dim=-1, descending=True, stable=True)
        flags = stuck if stuck is not None else p.new_zeros(len(p))
        parts = (flags[:, None], order.indices[:, : self.width], order.values[:, : self.width])
        return torch.cat([part.double() for part in parts], 1).flatten()

    def token(self, answers: torch.Tensor) -> torch.Tensor:
        return answers[1:2].long()

    def read(self, answers: Floats) -> tuple[Ints, Floats]:
        """Tokens and probabilities, [nodes, width] each. RequestError where bans leave no token."""
        rows = answers.reshape(len(self.paths), -1)
        if rows[:, 0].any():
            raise RequestError(STUCK)
        tokens, chances = np.split(rows[:, 1:], 2, axis=1)
        return tokens.astype(np.int64), chances


def _answers(ask: Sheet | _Likeliest, output: Output) -> Floats:
    """What came with the pass, or is found now."""
    return output.answers if output.answers is not None else fetch(ask(output.logits))
