"""Small engines, spelled: real loop, real members, a toy target.

A member is given as a spelled method ("ngram:width=3"), a bare name (then with its `toy()` options), a class that
stands in no table, or a `Choice`. Does not: time anything; toys say nothing about speed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, product
from typing import Any

import numpy as np

from forerun.build import Choices, assemble, setup_for
from forerun.caches import CACHES
from forerun.config import Choice, Config, choose
from forerun.decoders import DECODERS
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import SoloDrafter
from forerun.engine.engine import Engine
from forerun.models.contract import Model
from forerun.models.toy import ToyModel
from forerun.planners import PLANNERS
from forerun.planners.contract import Planner, Spent, within
from forerun.registry import Registry
from forerun.rng import Purpose, Rng
from forerun.schedulers import SCHEDULERS
from forerun.types import (
    Context,
    Costs,
    Dist,
    Draft,
    Emission,
    Event,
    Facts,
    Floats,
    Logprob,
    Outcome,
    Runner,
    Sampling,
    Setup,
    Turn,
)
from forerun.verifiers import VERIFIERS

SCOPES = 32  # as many requests as a law has at most in one engine
EARLIER = (2, 1, 0, 1, 2, 0, 1, 1, 2, 2, 0, 1)  # its one token is written without a draft; no law's prompt begins so
Spelled = str | type[Any] | Choice
Tokens = tuple[int, ...]
COSTS = Costs((1, 8, 64), (1.0, 1.5, 8.0))  # of a toy's passes; made up, so that a planner plans the same every time
PRICE = 0.05  # of one level of a draft
TICK = 0.001  # seconds from one look at a toy's clock to the next


def chosen(registry: Registry, member: Spelled) -> Choice:
    """The member that is meant, with toy options where none are spelled."""
    if isinstance(member, Choice):
        return member
    if isinstance(member, str) and ":" in member:
        return choose(registry, member)
    found = registry[member] if isinstance(member, str) else member
    return Choice(registry.family, member if isinstance(member, str) else found.__name__, found, found.toy())


@cache
def target(seed: int) -> ToyModel:
    """The target that a seed stands for, the same one for all laws, so that what it should write is found once."""
    return ToyModel(3, seed)


@dataclass(frozen=True)
class Text:
    """What one request wrote."""

    emissions: tuple[Emission, ...]
    text: str
    finish_reason: str
    error: str | None = None
    scores: tuple[Logprob | None, ...] = ()  # of the prompt's tokens

    @property
    def tokens(self) -> Tokens:
        return tuple(e.token for e in self.emissions)


@dataclass(frozen=True)
class Ask:
    """One request; `rng` replaces the numbers that its seed would give."""

    prompt: Tokens
    sampling: Sampling
    rng: Rng | None = None


PAST = Ask(EARLIER, Sampling(temperature=0, max_tokens=1))


@dataclass
class Rig:
    """A built engine, the second models that its drafter opened, and what its requests have said so far."""

    engine: Engine
    runners: list[Runner] = field(default_factory=list)
    said: dict[int, list[Event]] = field(default_factory=dict)
    scopes: list[str] | None = None  # those that no request has had yet; None: all requests share one

    def __post_init__(self) -> None:
        self.rooms = [cache.free() for cache in self.caches]  # before anybody came

    def remember(self, past: Ask = PAST, requests: int = SCOPES) -> None:
        """Give each request to come a scope of its own, and every scope the same past."""
        self.scopes = [f"scope {number}" for number in range(requests)]
        for scope in self.scopes:
            self.engine.add(past.prompt, past.sampling, scope)
        while self.engine.busy:
            self.engine.step()

    def add(self, ask: Ask) -> int:
        """A new request; its id."""
        scope = self.scopes.pop() if self.scopes is not None else ""
        number = self.engine.add(ask.prompt, ask.sampling, scope, ask.rng)
        self.said[number] = []
        return number

    def step(self) -> None:
        """One step of the loop."""
        for event in self.engine.step():
            self.said[event.request].append(event)

    def first(self, numbers: Sequence[int]) -> None:
        """One step, after which these requests are aborted."""
        self.step()
        for number in numbers:
            self.engine.abort(number)

    def finish(self) -> None:
        """Steps until nothing is left to do."""
        while self.engine.busy:
            self.step()

    def text(self, number: int) -> Text:
        """Everything that a finished request said."""
        events = self.said[number]
        emissions = tuple(e for event in events for e in event.emissions)
        last = events[-1]
        text, scores = "".join(event.text for event in events), sum((event.prompt_logprobs for event in events), ())
        return Text(emissions, text, last.finish_reason or "", last.error, scores)

    def write(self, asks: Sequence[Ask]) -> list[Text]:
        """All requests together, to their end."""
        numbers = [self.add(ask) for ask in asks]
        self.finish()
        return [self.text(number) for number in numbers]

    @property
    def caches(self) -> list[Any]:
        """Every cache in use, the target's first."""
        return [self.engine.cache, *(runner.cache for runner in self.runners)]


@dataclass(frozen=True)
class Toy:
    """Which members, which target, and how large; frozen, so that laws can vary one axis with `replace`."""

    drafter: Spelled = "none"
    verifier: Spelled = "rejection"
    planner: Spelled = "fixed"
    decoder: Spelled = "draft_verify"
    scheduler: Spelled = "fcfs"
    cache: Spelled = "contiguous"
    tree: Choice | None = None  # in place of the one that the drafter's options name
    model: Model = field(default_factory=lambda: target(0))
    config: Config = field(default_factory=lambda: Config(max_requests=32, max_step_tokens=4096))
    decode: Callable[..., str] = lambda tokens: "".join(chr(97 + token) for token in tokens)

    @property
    def choices(self) -> Choices:
        """The chosen member of every family."""
        return Choices(
            drafter=chosen(DRAFTERS, self.drafter),
            verifier=chosen(VERIFIERS, self.verifier),
            planner=chosen(PLANNERS, self.planner),
            decoder=chosen(DECODERS, self.decoder),
            scheduler=chosen(SCHEDULERS, self.scheduler),
            cache=chosen(CACHES, self.cache),
        )

    def build(self, requests: int = SCOPES) -> Rig:
        """A fresh engine, for so many requests where they go by earlier ones: each past is a request of its own."""
        setup, runners = setup_for(self.config, self.model), list[Runner]()

        def open_model(folder: str, cache: str, dtype: str) -> Runner:
            runners.append(setup.open_model(folder, cache, dtype))
            return runners[-1]

        def open_tree(spelled: str) -> Any:  # noqa: ANN401 - a tree, whichever table it stands in
            tree = self.tree
            return setup.open_tree(spelled) if tree is None else tree.member(tree.options, setup)

        watched = replace(setup, open_model=open_model, open_tree=open_tree, costs=lambda: COSTS)
        choices = replace(self.choices, planner=modelled(self.choices.planner, COSTS, PRICE))
        rig = Rig(assemble(choices, self.config, self.model, watched, self.decode), runners)
        rig.engine.clock = partial(next, count(0, TICK))
        if self.learns:
            rig.remember(requests=requests)
        return rig

    @property
    def learns(self) -> bool:
        """Whether requests go by earlier ones."""
        return any(choice.member.facts.learns for choice in (self.choices.drafter, self.choices.decoder))

    def resized(self, **sizes: Any) -> "Toy":  # noqa: ANN401 - values of a Config
        """The same engine with other values in its Config."""
        return replace(self, config=replace(self.config, **sizes))

    def plain(self) -> "Toy":
        """The same engine without drafts."""
        return replace(self, drafter="none", decoder="autoregressive")


class BushyDrafter(SoloDrafter):
    """Every pair of tokens below every node, two levels deep: whatever the target says, most of it is rejected."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """`width` children per node, `depth` levels."""

        width: int = 2
        depth: int = 2

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.vocab = options, setup.vocab

    def propose_one(self, context: Context, budget: int) -> Draft:
        width, first = self.options.width, len(context.tokens)
        tokens: list[int] = []
        parents: list[int] = []
        level = [-1]
        for _ in range(self.options.depth):
            start = len(tokens)
            for parent, child in product(level, range(width)):
                tokens.append((first + parent + 1 + child) % self.vocab)  # another order at every place
                parents.append(parent)
            level = list(range(start, len(tokens)))
        return Draft(tuple(tokens[:budget]), tuple(parents[:budget]), source="bushy")


KINDS = (
    "iid",
    "without",
    "greedy",
    "mixed",
)  # how siblings come about; mixed: every other one of i.i.d. ones is chosen


class SiblingsDrafter(SoloDrafter):
    """Siblings of every kind, drawn from a toy model; width 1 is a drawn chain."""

    facts = Facts(draws=True)

    @dataclass(frozen=True)
    class Options:
        """`kind` of the siblings; below the first of them, `width` again, and one fewer below every other."""

        kind: str = "iid"
        width: int = 2
        depth: int = 1
        seed: int = 100

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.model = options, ToyModel(setup.vocab, options.seed)

    def propose_one(self, context: Context, budget: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        drawn: list[Dist | None] = []
        level = [(-1, tuple(context.tokens), self.options.width)]
        for depth in range(self.options.depth):
            below = []
            for parent, text, width in level:
                q = self.model.probs(text)
                for number in range(width):
                    elders = tokens[len(tokens) - number :]
                    dist = self._dist(q, elders, width, drawn[-number] if number else None)
                    node = len(tokens)
                    token = self._next(q, elders) if dist is None else self._draw(context, dist, depth, node)
                    tokens.append(token)
                    parents.append(parent)
                    drawn.append(dist)
                    below.append((node, (*text, token), max(self.options.width - min(number, 1), 1)))
            level = below
        return Draft(tuple(tokens[:budget]), tuple(parents[:budget]), tuple(drawn[:budget]), source="siblings")

    def _dist(self, q: Floats, elders: Sequence[int], width: int, first: Dist | None) -> Dist | None:
        """What the next sibling is drawn from; None where it is chosen."""
        kind, number = self.options.kind, len(elders)
        if (kind == "greedy" and number < width - 1) or (kind == "mixed" and number % 2):
            return None
        if kind in ("iid", "mixed"):
            return first or Dist(q)
        rest = q.copy()
        rest[list(elders)] = 0
        return Dist(rest / rest.sum())

    @staticmethod
    def _next(q: Floats, elders: Sequence[int]) -> int:
        rest = q.copy()
        rest[list(elders)] = -1
        return int(rest.argmax())

    @staticmethod
    def _draw(context: Context, dist: Dist, depth: int, node: int) -> int:
        return context.rng.categorical(dist, Purpose.DRAFT, depth, node)


class Modelled(Planner):
    """Tells a planner times by a table in place of the clock's, so that the same steps bring the same budgets.

    Does not: charge for reading prompts.
    """

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """The planner, what passes take, and what a level of drafts takes, in seconds."""

        inner: Choice
        costs: Costs
        price: float

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, inner = options, options.inner
        self.inner: Planner = inner.member(inner.options, replace(setup, costs=lambda: options.costs))
        self.hidden, self.deepest, self.seconds = self.inner.hidden, 0, 0.0

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        self.deepest = 0
        return self.inner.share(batch, room)

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> Sequence[Draft]:
        self.deepest = max((depth for draft in drafts for depth in draft.depths), default=0)
        return self.inner.cut(batch, drafts)

    def see(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.inner.see(batch, outcomes)

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        costs, drafting = self.options.costs, self.options.price * self.deepest
        if batch:
            self.seconds += drafting + costs.of(len(batch) + sum(map(len, drafts)))
        self.inner.observe(batch, drafts, turns, Spent(drafting, costs.of(spent.rows), spent.rows))


def modelled(planner: Choice, costs: Costs, price: float) -> Choice:
    """The same planner, with times by a table."""
    return Choice(planner.family, planner.name, Modelled, Modelled.Options(planner, costs, price))


class WrongDrafter(SoloDrafter):
    """A chain of as many tokens as it may, at random: what a drafter costs that is hardly ever right."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """`depth`: tokens at most."""

        depth: int = 8

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.vocab = options, setup.vocab

    def propose_one(self, context: Context, budget: int) -> Draft:
        rng = np.random.default_rng((context.id, len(context.tokens)))
        return Draft.chain(rng.integers(self.vocab, size=min(budget, self.options.depth)).tolist(), "wrong")


class PickyPlanner(Planner):
    """Asks for much and verifies little: nodes of which the drafter is sure, and half of those it says nothing of."""

    facts = Facts(solo=True)

    @dataclass(frozen=True)
    class Options:
        """`nodes` that are drafted; `least`: the confidence below which a node goes, with all that needs it."""

        nodes: int = 8
        least: float = 0.65

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        return within([self.options.nodes] * len(batch), room)

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> list[Draft]:
        return [self._cut(draft) for draft in drafts]

    def _cut(self, draft: Draft) -> Draft:
        if draft.confidence is None:
            return draft.only(range((len(draft) + 1) // 2))
        kept = set[int]()
        for node, parent in enumerate(draft.parents):
            stands = (parent < 0 or parent in kept) and all(e in kept for e in draft.children(parent) if e < node)
            if stands and self.worth(draft, node) >= self.options.least:
                kept.add(node)
        return draft.only(sorted(kept))

    def worth(self, draft: Draft, node: int) -> float:
        """What decides; a mutant has another."""
        return draft.confidence[node] if draft.confidence is not None else 1.0


@dataclass(frozen=True)
class Told:
    """A `Target` without a model: p after every node, as a function says it."""

    p: Callable[[int], Dist]
    text: Sequence[int] = ()

    def __getitem__(self, node: int) -> Dist:
        return self.p(node)

    def soft(self, node: int) -> Dist:
        return self.p(node)

    def hidden(self, layer: int, node: int) -> Floats:
        raise LookupError(f"no model was run, so layer {layer} made nothing of node {node}.")
