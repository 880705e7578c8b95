"""Several drafters guess, and their drafts become one tree, in which what they agree on is verified once.

They are asked in the order of the list. Each gets, of the nodes that are left, the part that its running acceptance
has in that of everyone still to be asked, so what one leaves goes to the others; the running acceptance is the share
of a request's latest nodes that came true. A chosen node joins an elder sibling of the same token, drawn or chosen. A
drawn node always stands for itself, because after it the verifier subtracts its q; only what follows on it moves
below the eldest sibling that says the same.
Does not: cut by confidence (a drawn token must not decide whether it is judged); draft with several at the same time;
learn from other requests, because a text must not depend on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import torch

from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError
from forerun.rng import RngPart
from forerun.types import Context, Dist, Draft, Facts, Need, Outcome, Output, Setup, Verdict, Work

MEMORY = 0.9  # what a node counts for one step later
_NOTHING = Draft()


@dataclass(eq=False)
class _Share:
    """One drafter's part in one request."""

    context: Context
    accepted: float = 1.0
    drafted: float = 2.0  # as if one of two nodes had come true
    draft: Draft = _NOTHING
    places: list[int] = field(default_factory=list)  # of the draft's nodes in the tree

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted

    def learn(self, path: Sequence[int]) -> None:
        self.accepted = MEMORY * self.accepted + len(set(path) & set(self.places))
        self.drafted = MEMORY * self.drafted + len(self.places)


@dataclass(eq=False)
class _Request:
    """All drafters' parts in one request."""

    shares: list[_Share]
    tree: Draft = _NOTHING

    def cut(self, tree: Draft) -> None:
        """Forget what was not verified; everything, where the tree is of another drafter that was asked as well."""
        at = {place: node for node, place in enumerate(self._places(tree))}
        for share in self.shares:
            kept = list[int]()
            for node, place in enumerate(share.places):
                parent = share.draft.parents[node]
                elder = [child for child in share.draft.children(parent) if child < node]
                if place in at and (parent < 0 or parent in kept) and all(child in kept for child in elder):
                    kept.append(node)
            share.draft, share.places = share.draft.only(kept), [at[share.places[node]] for node in kept]
        self.tree = tree

    def _places(self, tree: Draft) -> list[int]:
        """Which nodes of the own tree were verified."""
        try:
            found = self.tree.places_of(tree)
        except IndexError:
            return []
        return found if tree.tokens == tuple(self.tree.tokens[place] for place in found) else []

    def budget(self, number: int, left: int) -> int:
        """Nodes for one drafter, of those that are left."""
        rates = [share.acceptance for share in self.shares[number:]]
        return min(left, ceil(left * rates[0] / sum(rates)))


class SeveralDrafter(Drafter):
    """Holds other drafters and merges what they guess."""

    facts = Facts(draws=True, needs=frozenset({Need.BRANCHING}), evidence="docs/results/README.md#several")

    @dataclass(frozen=True)
    class Options:
        """`of`: drafters, spelled; one with several options in brackets: [ngram,(draft-model:tree=svip,depth=4)]."""

        of: tuple[str, ...] = ("ngram", "draft-model")

        def __post_init__(self) -> None:
            example = "name at least one other, as in several:of=[ngram,draft-model]"
            if not self.of:
                raise ConfigError(f"drafter 'several' holds no drafter; {example}.")
            if any(spelled.partition(":")[0].strip() == "several" for spelled in self.of):
                raise ConfigError(f"drafter 'several' holds itself in {list(self.of)}; {example}.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.drafters: list[Drafter] = [setup.open_drafter(spelled, setup) for spelled in options.of]
        self.hidden = tuple(sorted({layer for drafter in self.drafters for layer in drafter.hidden}))

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(of=("ngram:width=2,min_match=1,max_match=2", "draft-model:model=toy:100,depth=2"))

    @property
    def listens(self) -> bool:
        return any(drafter.listens for drafter in self.drafters)

    @property
    def watches(self) -> bool:
        return any(drafter.watches for drafter in self.drafters)

    def start(self, context: Context) -> _Request:
        shares: list[_Share] = []
        for number, drafter in enumerate(self.drafters):
            own = replace(context, rng=RngPart(context.rng, number, len(self.drafters)))
            shares.append(_Share(replace(own, state=drafter.start(own))))
        return _Request(shares)

    def pause(self, context: Context) -> None:
        for drafter, share in zip(self.drafters, context.state.shares, strict=True):
            drafter.pause(share.context)

    def resume(self, context: Context) -> None:
        for drafter, share in zip(self.drafters, context.state.shares, strict=True):
            drafter.resume(share.context)

    def stop(self, context: Context) -> None:
        for drafter, share in zip(self.drafters, context.state.shares, strict=True):
            drafter.stop(share.context)

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        requests: list[_Request] = [context.state for context in batch]
        left = list(budgets)
        for request in requests:
            request.tree = _NOTHING
            for share in request.shares:
                share.draft, share.places = _NOTHING, []
        for number, drafter in enumerate(self.drafters):
            nodes = [request.budget(number, room) for request, room in zip(requests, left, strict=True)]
            asked = [i for i, count in enumerate(nodes) if count > 0]
            shares = [requests[i].shares[number] for i in asked]
            drafts = drafter.propose([share.context for share in shares], [nodes[i] for i in asked]) if asked else []
            for i, share, draft in zip(asked, shares, drafts, strict=True):
                share.draft = draft
                requests[i].tree = merged(requests[i].shares)
                left[i] = budgets[i] - len(requests[i].tree)
        return [request.tree for request in requests]

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            if outcome.draft is not None and outcome.draft is not context.state.tree:
                context.state.cut(outcome.draft)
        for number, drafter in enumerate(self.drafters):
            contexts = [context.state.shares[number].context for context in batch]
            pairs = zip(batch, outcomes, strict=True)
            drafter.observe(contexts, [_seen(context.state, number, outcome) for context, outcome in pairs])
        for context, outcome in zip(batch, outcomes, strict=True):
            if outcome.verdict is not None and outcome.draft:
                for share in context.state.shares:
                    share.learn(outcome.verdict.path)


def joins(q: Dist | None) -> bool:
    """Whether a node that was drawn from q is the same as an elder sibling of its token."""
    return q is None


class _Tree:
    """Drafts that become one, node by node."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.q: list[Dist | None] = []
        self.confidence: list[float] = []
        self.source: list[str] = []
        self._eldest: dict[tuple[int, int], int] = {}  # parent and token -> node

    def take(self, share: _Share) -> None:
        draft, share.places = share.draft, []
        for node, token in enumerate(draft.tokens):
            parent = share.places[draft.parents[node]] if draft.parents[node] >= 0 else -1
            q = draft.q[node] if draft.q is not None else None
            place = self._eldest.setdefault((parent, token), len(self.tokens))
            if place == len(self.tokens) or not joins(q):
                self.tokens.append(token)
                self.parents.append(parent)
                self.q.append(q)
                self.confidence.append(draft.confidence[node] if draft.confidence else share.acceptance)
                self.source.append(draft.source_of(node))
            share.places.append(place)

    def draft(self) -> Draft:
        q = tuple(self.q) if any(q is not None for q in self.q) else None
        return Draft(tuple(self.tokens), tuple(self.parents), q, tuple(self.confidence), tuple(self.source))


def merged(shares: Sequence[_Share]) -> Draft:
    """One tree of all drafts; those with drawn nodes come first, so that chosen ones can join these."""
    tree = _Tree()
    for share in sorted(shares, key=lambda share: share.draft.q is None):
        tree.take(share)
    return tree.draft()


# What one drafter sees of the outcome


def _seen(request: _Request, number: int, outcome: Outcome) -> Outcome:
    """The outcome as one drafter may read it: its own draft, and after it what others guessed right, as more nodes."""
    if outcome.verdict is None:
        return outcome
    share, tree = request.shares[number], request.tree
    own, places = share.draft, list(share.places)
    if places == list(range(len(tree))):
        return outcome  # the whole tree is its own
    first = {place: node for node, place in reversed(list(enumerate(places)))}
    path: list[int] = []
    parents = list(own.parents)
    for place in outcome.verdict.path:
        if place not in first:
            places.append(place)
            parents.append(path[-1] if path else -1)
        path.append(first.get(place, len(places) - 1))
    others = len(places) - len(own)
    draft = Draft(
        tuple(tree.tokens[place] for place in places),
        tuple(parents),
        (*own.q, *[None] * others) if own.q is not None else None,
        source=(*map(own.source_of, range(len(own))), *(tree.source_of(place) for place in places[len(own) :])),
    )
    work, output = _rows(outcome, draft, places)
    return Outcome(work, output, draft, Verdict(tuple(path), outcome.verdict.token))


def _rows(outcome: Outcome, draft: Draft, places: Sequence[int]) -> tuple[Work, Output]:
    """The part of the target's pass that belongs to these nodes of the tree."""
    work, output = outcome.work, outcome.output
    pending = len(work.tokens) - len(outcome.draft or ())
    rows = [0, *(place + 1 for place in places)]
    entries = [*range(pending), *(pending + place for place in places)]
    part = Work(
        work.slot,
        (*work.tokens[:pending], *draft.tokens),
        (*range(-1, pending - 1), *(pending + parent for parent in draft.parents)),
        logits=tuple(range(pending - 1, pending + len(places))),
        hidden=work.hidden,
        plan=work.plan,
    )
    return part, Output(
        _picked(output.logits, rows),
        tuple(output.best[row] for row in rows),
        tuple(output.peak[row] for row in rows),
        tuple(output.mass[row] for row in rows) if output.mass is not None else None,
        {layer: _picked(states, entries) for layer, states in output.hidden.items()},
    )


def _picked(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Some rows; without a copy where they are the first."""
    return tensor[: len(rows)] if rows == list(range(len(rows))) else tensor[rows]
