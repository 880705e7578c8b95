"""Several drafters guess, and their drafts become one tree, in which what they agree on is verified once.

Everybody may guess as if he were alone. Where that is more than the budget, the nodes stay that are likeliest to come
true: a node's chance, if its parent does, is its confidence times what nodes of its drafter were worth for each that
was hoped for, in this request and lately; those that begin a draft are counted apart from those that follow. A chosen
node joins an elder sibling of the same token, drawn or chosen. A drawn node always stands for itself, because after it
the verifier subtracts its q; only what follows on it moves below the eldest sibling that says the same.
Drawn nodes all stay, as a drawn token must not decide whether it is judged. So who draws is asked last, for the part of
the nodes that its running acceptance has in that of all who have something to say, or for what the others leave.
Does not: draft with several at the same time; learn from other requests, because a text must not depend on its
neighbours.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil

import torch

from forerun.drafters.contract import Drafter
from forerun.errors import ConfigError
from forerun.rng import RngPart
from forerun.types import Context, Dist, Draft, Facts, Need, Outcome, Output, Setup, Verdict, Work

MEMORY = 0.9  # what a node counts for one step later
HOPE = 0.5  # confidence of a node of which nobody says any
PRIOR = 2.0  # nodes that count as if they had come true as hoped
Way = tuple[int, ...]
_NOTHING = Draft()


@dataclass(eq=False)
class _Share:
    """One drafter's part in one request."""

    context: Context
    accepted: float = 1.0
    drafted: float = 2.0  # as if one of two nodes had come true
    hoped: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])  # of nodes that begin a draft, and of others
    came: list[float] = field(default_factory=lambda: [PRIOR, PRIOR])
    draft: Draft = _NOTHING
    places: list[int] = field(default_factory=list)  # of the draft's nodes in the tree

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted

    @property
    def draws(self) -> bool:
        """Whether there is a drawn node in the draft."""
        return self.draft.q is not None

    def hope(self, node: int) -> float:
        return self.draft.confidence[node] if self.draft.confidence is not None else HOPE

    def chances(self) -> list[float]:
        """Of every node of the draft, that it comes true."""
        found, luck = list[float](), [came / hoped for came, hoped in zip(self.came, self.hoped, strict=True)]
        for node, parent in enumerate(self.draft.parents):
            above = found[parent] if parent >= 0 else 1.0
            found.append(above * min(self.hope(node) * luck[parent >= 0], 1.0))
        return found

    def keep(self, places: Sequence[int | None]) -> None:
        """Forget nodes that have no place in the tree, with what hangs below them and their younger siblings."""
        kept = dict[int, int]()
        for node, (parent, place) in enumerate(zip(self.draft.parents, places, strict=True)):
            elder = [child for child in self.draft.children(parent) if child < node]
            if place is not None and (parent < 0 or parent in kept) and all(child in kept for child in elder):
                kept[node] = place
        self.draft, self.places = self.draft.only(list(kept)), list(kept.values())

    def learn(self, path: Sequence[int]) -> None:
        came = set(path)
        self.accepted = MEMORY * self.accepted + len(came & set(self.places))
        self.drafted = MEMORY * self.drafted + len(self.places)
        self.hoped, self.came = ([PRIOR + MEMORY * (count - PRIOR) for count in one] for one in (self.hoped, self.came))
        for node, parent in enumerate(self.draft.parents):
            if parent < 0 or self.places[parent] in came:
                self.hoped[parent >= 0] += self.hope(node)
                self.came[parent >= 0] += self.places[node] in came


@dataclass(eq=False)
class _Request:
    """All drafters' parts in one request."""

    shares: list[_Share]
    tree: Draft = _NOTHING

    def cut(self, tree: Draft) -> None:
        """Forget what was not verified; everything, where the tree is of another drafter that was asked as well."""
        at = {place: node for node, place in enumerate(self._places(tree))}
        for share in self.shares:
            share.keep([at.get(place) for place in share.places])
        self.tree = tree

    def _places(self, tree: Draft) -> list[int]:
        """Which nodes of the own tree were verified."""
        try:
            found = self.tree.places_of(tree)
        except IndexError:
            return []
        return found if tree.tokens == tuple(self.tree.tokens[place] for place in found) else []

    def room(self, waiting: Sequence[int], budget: int) -> int:
        """Nodes that the first of those who are still to be asked may draw, of what others have not drawn."""
        heard = [share for share in self.shares if share.draft and not share.draws]
        left = budget - sum(len(share.draft) for share in self.shares if share.draws)
        unused = max(left - sum(len(share.draft) for share in heard), 0)
        rates = [self.shares[one].acceptance for one in waiting]
        all_rates = sum(rates) + sum(share.acceptance for share in heard)
        return min(left, ceil(max(left * rates[0] / all_rates, unused * rates[0] / sum(rates))))


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
        for request in requests:
            for share in request.shares:
                share.draft, share.places = _NOTHING, []
        drawing = [one for one, drafter in enumerate(self.drafters) if drafter.facts.draws]
        for draws, (number, drafter) in product((False, True), enumerate(self.drafters)):
            waiting = [one for one in drawing if one >= number]
            rooms = {
                i: requests[i].room(waiting, budgets[i]) if draws else budgets[i]
                for i, context in enumerate(batch)
                if draws == (drafter.facts.draws and not context.sampling.greedy)
            }
            shares = {i: requests[i].shares[number] for i, room in rooms.items() if room}
            contexts = [share.context for share in shares.values()]
            drafts = drafter.propose(contexts, [rooms[i] for i in shares]) if shares else []
            for share, draft in zip(shares.values(), drafts, strict=True):
                share.draft = draft
        for request, budget in zip(requests, budgets, strict=True):
            request.tree = merged(request.shares, budget)
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

    def take(self, share: _Share, wanted: Sequence[bool]) -> None:
        """The wanted nodes of one draft, and those that are there already."""
        draft, places = share.draft, list[int | None]()
        for node, (token, above) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            parent = places[above] if above >= 0 else -1
            q = draft.q[node] if draft.q is not None else None
            place = self._eldest.get((parent, token)) if parent is not None else None
            if parent is not None and wanted[node] and (place is None or not joins(q)):
                self._eldest.setdefault((parent, token), len(self.tokens))
                place = self._eldest[parent, token]
                self.tokens.append(token)
                self.parents.append(parent)
                self.q.append(q)
                self.confidence.append(draft.confidence[node] if draft.confidence else share.acceptance)
                self.source.append(draft.source_of(node))
            places.append(place)
        share.keep(places)

    def draft(self) -> Draft:
        q = tuple(self.q) if any(q is not None for q in self.q) else None
        return Draft(tuple(self.tokens), tuple(self.parents), q, tuple(self.confidence), tuple(self.source))


def merged(shares: Sequence[_Share], budget: int) -> Draft:
    """One tree of all drafts; those with drawn nodes come first, so that chosen ones can join these."""
    tree = _Tree()
    drawn, chosen = ([share for share in shares if share.draws == draws] for draws in (True, False))
    for share in drawn:
        tree.take(share, [True] * len(share.draft))
    there = {way for share in drawn for way in _ways(share.draft)}
    wanted = _likeliest(chosen, budget - len(tree.tokens), there)
    for share in chosen:
        tree.take(share, [wanted is None or way in wanted for way in _ways(share.draft)])
    return tree.draft()


def _likeliest(shares: Sequence[_Share], room: int, there: AbstractSet[Way]) -> AbstractSet[Way] | None:
    """Ways of tokens to the nodes that are likeliest to come true, of those not there; None, where there is room."""
    if sum(len(share.draft) for share in shares) <= room:
        return None
    chances = dict[Way, float]()
    for share in shares:
        for way, chance in zip(_ways(share.draft), share.chances(), strict=True):
            if way not in there:
                chances[way] = max(chance, chances.get(way, 0.0))
    return set(sorted(chances, key=lambda way: (-chances[way], len(way)))[:room])


def _ways(draft: Draft) -> list[Way]:
    """The tokens from the root to every node."""
    ways = list[Way]()
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        ways.append((*(ways[parent] if parent >= 0 else ()), token))
    return ways


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
