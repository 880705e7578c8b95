"""The most probable span of the prompt, found exactly (2108.05857).

An answer is a span and a token that ends it, or a span of as many tokens as may be written; its probability is that by
which plain decoding writes it, at temperature 1 where the request is greedy. No span is more probable than what it
begins with, so spans are read best first, as many at a time as the budget has nodes, and most are never read.
Does not: know which part of the prompt is the passage, or look for spans longer than `longest`; a request that no span
can answer, such as one without an end, is decoded plainly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf, log

import torch

from forerun.decoders.autoregressive import AutoregressiveDecoder
from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.decoders.draft_verify import DraftVerifyDecoder
from forerun.errors import ConfigError, RequestError
from forerun.sampling import Rows, logprob
from forerun.sheet import Ahead
from forerun.types import Context, Dist, Draft, Emission, Facts, Need, Output, Turn

Path = tuple[int, ...]
_PATIENCE = 256  # steps in a row whose budget is too small for the next span


@dataclass(eq=False)
class Hunt:
    """The spans of one prompt, as far as they were read. Costs are minus the logarithms of probabilities."""

    prompt: Sequence[int]
    ends: frozenset[int]
    limit: int  # tokens of a whole text
    longest: int
    unread: list[tuple[float, Path]]  # a heap
    best: tuple[float, Path] = (inf, ())
    places: dict[Path, list[int]] = field(default_factory=dict)  # where in the prompt a span goes on
    asked: list[tuple[float, Path, int]] = field(default_factory=list)  # in this step; with the node
    rows: dict[Path, torch.Tensor] = field(default_factory=dict)  # logits, where a request wants to know of them
    drafted: int = 0
    waited: int = 0

    @property
    def over(self) -> bool:
        """Whether no span that was not read can be better; of equals the first by its tokens is the answer."""
        return not self.unread or self.unread[0][0] > self.best[0]

    def ask(self, budget: int) -> Draft:
        """The likeliest spans that fit, as one tree."""
        nodes, parents = dict[Path, int](), list[int]()
        self.asked = []
        while not self.over and len(nodes) <= budget:
            cost, path = heappop(self.unread)
            fresh = [path[:end] for end in range(1, len(path) + 1) if path[:end] not in nodes]
            if len(nodes) + len(fresh) > budget:
                heappush(self.unread, (cost, path))
                break
            for one in fresh:
                parents.append(nodes.get(one[:-1], -1))
                nodes[one] = len(nodes)
            self.asked.append((cost, path, nodes.get(path, -1)))
        self.drafted += len(nodes)
        return Draft(tuple(path[-1] for path in nodes), tuple(parents), source="exact-extract")

    def read(self, cost: float, path: Path, p: Dist) -> None:
        """What may follow a span has these probabilities."""
        for end in self.ends if path else ():
            self._offer(cost + _cost(p.prob(end)), (*path, end))
        follows = dict[int, list[int]]()
        for place in self.places.pop(path, range(len(self.prompt))):
            if place < len(self.prompt) and self.prompt[place] not in self.ends:
                follows.setdefault(self.prompt[place], []).append(place + 1)
        for token, places in follows.items():
            longer, worse = (*path, token), cost + _cost(p.prob(token))
            if len(longer) == self.limit <= self.longest:
                self._offer(worse, longer)
            elif len(longer) <= self.longest and worse < inf:
                self.places[longer] = places
                heappush(self.unread, (worse, longer))

    def _offer(self, cost: float, text: Path) -> None:
        if cost < inf and len(text) <= self.limit:
            self.best = min(self.best, (cost, text)) if self.best[1] else (cost, text)


class ExactExtractDecoder(Decoder):
    """An answer in the prompt's own words; the same whatever the seed is."""

    facts = Facts(
        keys=("exact-extract",),
        paper="2108.05857",
        needs=frozenset({Need.BRANCHING}),
        exact=False,
        law="the one most probable span of the prompt",
        evidence="docs/results/README.md#guided",
    )

    @dataclass(frozen=True)
    class Options:
        """`longest`: tokens of a span; `nodes` of a step, whatever the planner is: spans must fit."""

        longest: int = 32
        nodes: int = 32

        def __post_init__(self) -> None:
            if not 1 <= self.longest <= self.nodes:
                given = f"longest is {self.longest} and nodes are {self.nodes}"
                raise ConfigError(f"decoder 'exact-extract': {given}; give 1 or more, and as many nodes.")

    def __init__(self, options: Options, parts: Parts) -> None:
        self.options, self.parts = options, replace(parts, ahead=Ahead.NOTHING)
        self.inner = DraftVerifyDecoder(DraftVerifyDecoder.Options(), self.parts)
        self.plain = AutoregressiveDecoder(AutoregressiveDecoder.Options(), self.parts)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(longest=3)

    def start(self, context: Context) -> Hunt:
        sampling, prompt = context.sampling, tuple(context.tokens[: context.prompt_length])
        ends = frozenset((*sampling.stop_token_ids, *(() if sampling.ignore_eos else self.parts.eos)))
        room = self.parts.setup.context_length - len(prompt)
        limit, longest = min(sampling.max_tokens or room, room), self.options.longest
        return Hunt(prompt, ends, limit, longest, [(0.0, ())] if ends or limit <= longest else [])

    def nodes(self, state: Hunt) -> int:
        return 0 if state.over else self.options.nodes

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        return [self.inner.work(seat, seat.state.ask(seat.budget if seat.last else -1)) for seat in seats]

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        return [self._turn(*one) for one in zip(seats, plans, outputs, strict=True)]

    def _turn(self, seat: Seat, plan: Plan, output: Output) -> Turn:
        hunt: Hunt = seat.state
        if not seat.last or (hunt.over and not hunt.asked):
            return self.plain.commit([seat], [plan], [output])[0]
        try:
            self._read(hunt, seat, plan, output)
        except RequestError as problem:
            return Turn((), (), error=str(problem))
        if hunt.over and hunt.best[1]:
            keep, depth = tuple(range(len(seat.pending))), len(hunt.best[1]) - 1
            return Turn(self._emissions(hunt, seat), keep, hunt.drafted, depth)
        hunt.waited = 0 if hunt.asked else hunt.waited + 1
        if hunt.waited > _PATIENCE:
            need = len(hunt.unread[0][1])
            message = f"decoder 'exact-extract' has a span of {need} tokens to read and room for {seat.budget}"
            return Turn((), (), error=f"{message}; raise max_step_tokens or the cache's size, or lower longest.")
        return Turn((), tuple(range(len(seat.pending) - 1)))  # the last token is read again beside the next spans

    def _read(self, hunt: Hunt, seat: Seat, plan: Plan, output: Output) -> None:
        p = Rows(output, seat.context, plan.draft, self.parts.eos)
        for cost, path, node in hunt.asked:
            if node not in p.stuck:
                hunt.read(cost, path, p.soft(node))
            if seat.context.sampling.logprobs is not None:
                hunt.rows[path] = output.logits[node + 1].clone()

    def _emissions(self, hunt: Hunt, seat: Seat) -> tuple[Emission, ...]:
        count, found = seat.context.sampling.logprobs, list[Emission]()
        for i, token in enumerate(hunt.best[1]):
            detail = logprob(hunt.rows[hunt.best[1][:i]], token, count) if count is not None else None
            found.append(Emission(token, "target", detail))
        return tuple(found)


def _cost(chance: float) -> float:
    return -log(chance) if chance > 0 else inf
