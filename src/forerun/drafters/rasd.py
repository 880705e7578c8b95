"""Another drafter's tree, and what a datastore retrieves as far as that drafter finds it likely (RASD, 2503.03434).

Of the retrieved tree (as `rest` has it) those branches stay whose first token has at least `least` of the distribution
that the drafter drew its own first token from, or that it chose itself. They are merged by longest common prefix: a
retrieved node that says what the drafter says there is that node, and the rest hangs below it.
Does not: ask a drafter that only chooses for what it did not choose; prune where it drafted nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.drafters.contract import Drafter
from forerun.kernels.automaton import Guess
from forerun.kernels.suffixes import search
from forerun.stores.corpus import open_corpus
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

ROOT = -1


class RasdDrafter(Drafter):
    """Retrieval, pruned by a drafter and fused with its tree."""

    facts = Facts(
        keys=("rasd",),
        paper="2503.03434",
        draws=True,
        needs=frozenset({Need.DATASTORE, Need.BRANCHING}),
        evidence="docs/results/README.md#retrieval",
    )

    @dataclass(frozen=True)
    class Options:
        """`of`: the drafter, spelled; `store`: the datastore's file, which gets `share` of the nodes.

        Matches of `shortest` to `longest` tokens; `depth` tokens after up to `matches` of them.
        """

        of: str = "draft-model"
        store: str = ""
        share: float = 0.5
        least: float = 0.02
        longest: int = 16
        shortest: int = 2
        depth: int = 10
        matches: int = 512

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        corpus = open_corpus(options.store, setup, "drafter 'rasd'")
        self.search = search(corpus.tokens, corpus.suffixes)
        self.other: Drafter = setup.open_drafter(options.of, setup)
        self.hidden = self.other.hidden

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(of="draft-model:model=toy:100,depth=2", store="toy:0", shortest=1, depth=2, least=0.2)

    @property
    def watches(self) -> bool:
        return self.other.watches

    def start(self, context: Context) -> Context:
        return replace(context, state=self.other.start(context))

    def pause(self, context: Context) -> None:
        self.other.pause(context.state)

    def resume(self, context: Context) -> None:
        self.other.resume(context.state)

    def stop(self, context: Context) -> None:
        self.other.stop(context.state)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        rooms = [budget - int(budget * self.options.share) for budget in budgets]
        drafts = self.other.propose([context.state for context in batch], rooms)
        return [
            fused(draft, self._retrieved(context, draft, budget - len(draft)), budget)
            for context, draft, budget in zip(batch, drafts, budgets, strict=True)
        ]

    def _retrieved(self, context: Context, draft: Draft, budget: int) -> Guess:
        """The retrieved tree without what the drafter finds unlikely."""
        o = self.options
        found = self.search.longest(context.tokens[-o.longest :], o.shortest)
        tree = self.search.prefixes(found, o.depth, o.matches, budget + len(draft), 0.0)
        return pruned(tree, draft, o.least)

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        self.other.observe([context.state for context in batch], outcomes)


def pruned(tree: Guess, draft: Draft, least: float) -> Guess:
    """The branches whose first token the drafter gives some chance; all of them where it says nothing."""
    own = draft.children(ROOT)
    chosen, first = {draft.tokens[node] for node in own}, next(iter(own), None)
    tokens, parents, chances, score = tree
    kept: dict[int, int] = {ROOT: ROOT}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        wanted = parent != ROOT or first is None or token in chosen or draft.drawn_from(first).prob(token) >= least
        if wanted and parent in kept:
            kept[node] = len(kept) - 1
    nodes = list(kept)[1:]
    columns = (tuple(tokens[n] for n in nodes), tuple(kept[parents[n]] for n in nodes))
    return *columns, tuple(chances[n] for n in nodes), score


def fused(draft: Draft, tree: Guess, budget: int) -> Draft:
    """The drafter's nodes, and after them the retrieved ones that say something new, likeliest first."""
    tokens, parents = list(draft.tokens), list(draft.parents)
    confidence = list(draft.confidence) if draft.confidence is not None else [1.0] * len(tokens)
    eldest = {place: node for node, place in reversed(list(enumerate(zip(parents, tokens, strict=True))))}
    places: dict[int, int] = {ROOT: ROOT}
    for node, (token, parent, chance) in enumerate(zip(*tree[:3], strict=True)):
        if parent not in places:
            continue
        place = (places[parent], token)
        if place not in eldest and len(tokens) < budget:
            eldest[place] = len(tokens)
            tokens.append(token)
            parents.append(places[parent])
            confidence.append(chance)
        if place in eldest:
            places[node] = eldest[place]
    new = len(tokens) - len(draft)
    q = (*draft.q, *[None] * new) if draft.q is not None else None
    source = (*map(draft.source_of, range(len(draft))), *["rasd"] * new)
    return Draft(tuple(tokens), tuple(parents), q, tuple(confidence), source, draft.error)
