"""A likely text in which given phrases occur: beam search whose beams are dealt out by what is met (1804.06609).

A hypothesis is worth as much as it has met: the tokens of the phrases that occur in it, and of one that it has begun.
Every such worth has an even share of the beams, and shares that are not used go to the likeliest of the rest. Beside
the likeliest tokens each hypothesis is tried with the next token of every phrase that it lacks; it ends when it lacks
none. What all hypotheses have in common is written at once. The text does not depend on the seed.
Does not: count what the prompt holds; find a phrase that is cut into other tokens; norm by length. A request
whose phrases do not fit into its tokens, or that no beam brought together, ends with a sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import torch

from forerun.decoders.autoregressive import AutoregressiveDecoder
from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError, RequestError
from forerun.sampling import Rows, logprob
from forerun.sheet import Ahead
from forerun.types import Context, Draft, Emission, Facts, Floats, Need, Output, Turn

Path = tuple[int, ...]
Scored = tuple[float, Path]
_WHO = "decoder 'dynamic-beam-allocation'"
_PATIENCE = 256  # steps in a row without room for all hypotheses


@dataclass(eq=False)
class Search:
    """One request's hypotheses, from the beginning of its output. Costs are minus the logarithms of probabilities."""

    ends: frozenset[int]
    limit: int  # tokens of a whole text
    live: list[Scored] = field(default_factory=lambda: [(0.0, ())])
    best: Scored = (inf, ())
    written: int = 0
    asked: dict[Path, int] = field(default_factory=dict)  # in this step: what is read behind `written`, and its node
    known: dict[Path, Floats] = field(default_factory=dict)  # what may follow a hypothesis; nothing where bans say so
    rows: dict[Path, torch.Tensor] = field(default_factory=dict)  # logits, where a request wants to know of them
    drafted: int = 0
    waited: int = 0

    @property
    def over(self) -> bool:
        """Whether no hypothesis can become better than the best text that ended."""
        return not self.live or self.live[0][0] >= self.best[0]

    @property
    def unread(self) -> list[Path]:
        """Hypotheses of which it is not known what may follow."""
        return [path for _, path in self.live if path not in self.known]

    def ask(self, budget: int) -> Draft:
        """As many hypotheses as fit, as one tree."""
        self.asked, parents = {}, list[int]()
        for path in self.unread:
            tail = path[self.written :]
            fresh = [tail[:end] for end in range(1, len(tail) + 1) if tail[:end] not in self.asked]
            if len(parents) + len(fresh) <= budget:
                for one in fresh:
                    parents.append(self.asked.get(one[:-1], -1))
                    self.asked[one] = len(parents) - 1
        self.drafted += len(parents)
        return Draft(tuple(path[-1] for path in self.asked), tuple(parents), source="dynamic-beam-allocation")


class DynamicBeamAllocationDecoder(Decoder):
    """A beam search in one tree per request, which is read again with every step until its beginning is certain."""

    facts = Facts(
        keys=("dynamic-beam-allocation",),
        paper="1804.06609",
        needs=frozenset({Need.BRANCHING}),
        exact=False,
        law="the likeliest text with all phrases that its beams find",
        evidence="docs/results/README.md#guided",
    )

    @dataclass(frozen=True)
    class Options:
        """`phrases` that must occur, with `lead` before each; `beams`: at least one more than they have tokens.

        Of `window` tokens that are not certain the first becomes certain: that of the likeliest hypothesis that can
        still be completed.
        """

        phrases: tuple[str, ...] = ()
        lead: str = " "
        beams: int = 8
        window: int = 64

        def __post_init__(self) -> None:
            if self.beams < 1 or self.window < 1 or "" in self.phrases:
                given = f"beams is {self.beams}, window {self.window} and phrases are {list(self.phrases)}"
                raise ConfigError(f"{_WHO}: {given}; give numbers of 1 or more, and phrases of at least one character.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.options, self.parts = options, replace(parts, ahead=Ahead.NOTHING)
        spelling = parts.setup.open_spelling("")
        self.phrases = [tuple(spelling.encode((options.lead + phrase).encode())) for phrase in options.phrases]
        self.total = sum(map(len, self.phrases))
        if not all(self.phrases):
            raise ConfigError(
                f"{_WHO}: the model's tokens cannot write all of {list(options.phrases)}; leave some out."
            )
        if self.total >= options.beams:
            message = f"{_WHO}: the phrases have {self.total} tokens and beams is {options.beams}"
            raise ConfigError(f"{message}; each needs one, and so has a text without any: use beams={self.total + 1}.")
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), self.parts)
        self.plain = AutoregressiveDecoder(AutoregressiveDecoder.Options(), self.parts)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(phrases=("ca",), lead="", beams=3, window=4)

    def start(self, context: Context) -> Search:
        sampling = context.sampling
        ends = frozenset((*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.parts.eos)))
        room = self.parts.setup.context_length - context.prompt_length
        return Search(ends, min(sampling.max_tokens or room, room))

    def nodes(self, state: Search) -> int:
        return sum(len(path) - state.written for path in state.unread)

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        return [self.inner.work(seat, seat.state.ask(seat.budget) if seat.last else Draft()) for seat in seats]

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        return [self._turn(*one) for one in zip(seats, plans, outputs, strict=True)]

    def _turn(self, seat: Seat, plan: Plan, output: Output) -> Turn:
        search: Search = seat.state
        if not seat.last:
            return self.plain.commit([seat], [plan], [output])[0]
        try:
            read = self._read(search, seat, Rows(output, seat.context, plan.draft, self.parts.eos), output)
        except RequestError as problem:
            return Turn((), (), error=str(problem))
        search.waited = 0 if read else search.waited + 1
        if search.waited > _PATIENCE:
            message = f"{_WHO} has a hypothesis of {self.nodes(search)} tokens to read and room for {seat.budget}"
            return Turn((), (), error=f"{message}; raise max_step_tokens or the cache's size, or lower window.")
        if search.unread:
            return Turn((), tuple(range(len(seat.pending) - 1)))  # the last token is read again beside what follows it
        self._grow(search)
        return self._emit(search, seat)

    def _read(self, search: Search, seat: Seat, p: Rows, output: Output) -> bool:
        """Take in what may follow the hypotheses of this step; whether there were any."""
        nodes = {path: search.asked.get(path[search.written :], -1) for path in search.unread}
        asked = {path: node for path, node in nodes.items() if node >= 0 or len(path) == search.written}
        for path, node in asked.items():
            search.known[path] = p.soft(node).probs if node not in p.stuck else np.zeros(0)
            if seat.context.sampling.logprobs is not None:
                search.rows[path] = output.logits[node + 1].clone()
        return bool(asked)

    def _grow(self, search: Search) -> None:
        """One token more for every hypothesis."""
        found = dict[Path, float]()
        for cost, path in search.live:
            p, lacks = search.known[path], self._lacks(path)
            tried = {*_likeliest(p, self.options.beams), *lacks, *search.ends} - (search.ends if lacks else set())
            for token in tried if len(p) else ():
                if p[token] > 0:
                    found[*path, token] = cost - float(np.log(p[token]))
        going = list[Scored]()
        for path, cost in found.items():
            if path[-1] in search.ends or (len(path) == search.limit and not self._lacks(path)):
                search.best = min(search.best, (cost, path)) if search.best[1] else (cost, path)
            elif len(path) < search.limit:
                going.append((cost, path))
        search.live, search.known = sorted(self._dealt(going)), {}
        if search.live and len(search.live[0][1]) - search.written > self.options.window:
            self._decide(search)

    def _decide(self, search: Search) -> None:
        """The first token that is not certain is that of the likeliest hypothesis which can still be completed."""
        left = search.limit - len(search.live[0][1])
        able = [path for _, path in search.live if self.total - self._worth(path) <= left]
        first = (able or [search.live[0][1]])[0][: search.written + 1]
        search.live = [(cost, path) for cost, path in search.live if path[: len(first)] == first]
        if search.best[1][: len(first)] != first:
            search.best = (inf, ())

    def _dealt(self, going: Sequence[Scored]) -> list[Scored]:
        """Who stays: the likeliest of every worth, then the likeliest of the rest."""
        share, taken, rest = self.options.beams // (self.total + 1), list[Scored](), list[Scored]()
        count = dict[int, int]()
        for cost, path in sorted(going):
            worth = self._worth(path)
            count[worth] = count.get(worth, 0) + 1
            (taken if count[worth] <= share else rest).append((cost, path))
        return taken + rest[: self.options.beams - len(taken)]

    def _worth(self, path: Path) -> int:
        met = sum(len(phrase) for phrase in self.phrases if _holds(path, phrase))
        return met + max((_begun(path, phrase) for phrase in self.phrases if not _holds(path, phrase)), default=0)

    def _lacks(self, path: Path) -> set[int]:
        """The tokens that go on with a phrase that a text lacks, or begin it."""
        missing = [phrase for phrase in self.phrases if not _holds(path, phrase)]
        return {phrase[place] for phrase in missing for place in (0, _begun(path, phrase))}

    def _emit(self, search: Search, seat: Seat) -> Turn:
        """What is certain now: what all hypotheses have in common, or the best text."""
        paths = [] if search.over else [path for _, path in search.live]
        paths += [search.best[1]] if search.best[1] else []
        if not paths:
            words = " and ".join(map(repr, self.options.phrases))
            message = f"{_WHO} finds no text of {search.limit} tokens with {words}"
            return Turn((), (), error=f"{message}; allow more tokens, or use more beams.")
        fresh, pending = _common(paths)[search.written :], len(seat.pending)
        if not fresh:
            return Turn((), tuple(range(pending - 1)))
        steps = [fresh[:count] for count in range(1, len(fresh)) if fresh[:count] in search.asked]
        keep = (*range(pending), *(pending + search.asked[path] for path in steps))
        turn = Turn(self._emissions(search, seat, paths[0], len(fresh)), keep, search.drafted, len(fresh) - 1)
        search.written, search.drafted = search.written + len(fresh), 0
        return turn

    def _emissions(self, search: Search, seat: Seat, path: Path, size: int) -> tuple[Emission, ...]:
        count, found = seat.context.sampling.logprobs, list[Emission]()
        for at in range(search.written, search.written + size):
            detail = logprob(search.rows[path[:at]], path[at], count) if count is not None else None
            found.append(Emission(path[at], "target", detail))
        return tuple(found)


def _likeliest(p: Floats, count: int) -> list[int]:
    found: list[int] = np.argpartition(-p, min(count, len(p)) - 1)[:count].tolist()
    return found


def _common(paths: Sequence[Path]) -> Path:
    """The beginning that all share."""
    first, last = min(paths), max(paths)
    size = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:size]


def _holds(text: Path, phrase: Path) -> bool:
    return any(text[i : i + len(phrase)] == phrase for i in range(len(text) - len(phrase) + 1))


def _begun(text: Path, phrase: Path) -> int:
    """How many tokens of a phrase a text ends with."""
    sizes = range(min(len(phrase) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text[-size:] == phrase[:size]), 0)
