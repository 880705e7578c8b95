"""Every value that crosses a border between the engine and a family; all frozen.

Does not: hold anything that changes. Per-request state lives in `engine/request.py`, tokens in caches.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from forerun.errors import DraftError

if TYPE_CHECKING:
    import torch

    from forerun.rng import Rng
    from forerun.stores.shelf import Shelf

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Need(StrEnum):
    """What a member asks of the rest; the engine gives it or refuses the combination in one sentence."""

    HIDDEN_STATES = "hidden-states"  # the target's hidden states of every node
    LOGITS = "logits"  # the target's logits of every node, the rejected ones too
    BRANCHING = "branching"  # a cache and a model that can hold a tree, not only a chain
    SECOND_MODEL = "second-model"
    DATASTORE = "datastore"  # a file that is made before, of texts that the caller has
    TRAINING = "training"  # weights that must be trained before the method is of any use


@dataclass(frozen=True)
class Facts:
    """What a member declares about itself; the engine, the tests and the docs read this and never a name."""

    keys: tuple[str, ...] = ()  # what the literature calls it; rows of `forerun methods`
    paper: str | None = None  # arXiv number, or a reference where there is none
    needs: frozenset[Need] = frozenset()
    draws: bool = False  # a drafter that samples its tokens and reports the q they were drawn from
    exact: bool = True  # the output distribution equals the target's
    law: str | None = None  # what it equals instead, where that has a name
    coupled: bool = False  # a verifier whose text for a seed is plain decoding's, whatever was drafted
    clocked: bool = False  # what it does depends on measured times; so do a seed's uncoupled texts
    solo: bool = False  # a planner by which a request's budgets depend on its own past alone, not on company or load
    shares: bool = False  # a cache that can reuse the prefix of another request
    silent: bool = False  # a drafter that never drafts, so that nobody need ask
    lesson: int = 0  # nodes of a draft from whose rows a drafter learns what fewer would not teach, accepted or not
    learns: bool = False  # a drafter or decoder that goes by other requests of the same scope; so do a seed's texts
    branches: bool = True  # a cache that holds trees of unjudged tokens, not only chains
    ahead: bool = False  # a drafter that goes on behind `Context.ahead`
    stall_free: bool = False  # a scheduler by which who decodes is in every step that has room
    fair: bool = False  # a scheduler by which scopes that always wait are served alike
    evidence: str | None = None  # docs/results entry that shows the effect, measured


class Far(Protocol):
    """A dense distribution that lies on a device, or that nobody has computed. What is known without it, or None."""

    @property
    def probs(self) -> Floats:
        """All of it, fetched or computed now."""
        ...

    @property
    def there(self) -> "torch.Tensor | None":
        """All of it where it lies; None where that would have to be computed first."""
        ...

    def prob(self, token: int) -> float | None: ...
    def drawn(self, key: int) -> int | None: ...
    def minus(self, q: "Dist") -> "Dist | None": ...


@dataclass(frozen=True, eq=False, slots=True)
class Dist:
    """A distribution over token ids: dense when `ids` is None, else only the listed tokens have mass.

    `held`: [vocab] or [k], float32 in production and float64 on toy models, or what stands for it while it is not here;
    `ids`: [k], each id once. `only` is the token that has all the mass, where that is known: greedy decoding
    and chosen tokens need no arithmetic.
    """

    held: Floats | Far
    ids: Ints | None = None
    only: int | None = None

    @property
    def probs(self) -> Floats:
        """The numbers themselves, [vocab] or [k]."""
        return self.held if isinstance(self.held, np.ndarray) else self.held.probs

    @property
    def far(self) -> Far | None:
        """What stands for numbers that are not here."""
        return None if isinstance(self.held, np.ndarray) else self.held

    @staticmethod
    def point(token: int) -> "Dist":
        """All mass on one token: what a chosen, not drawn, token was "drawn" from, and what greedy decoding is."""
        return _point(token)

    def at(self, tokens: Ints) -> Floats:
        """Probabilities of `tokens` [n] -> [n]; zero for what is not listed."""
        if self.ids is None:
            return self.probs[tokens]
        hit: Floats = (tokens[:, None] == self.ids[None, :]) @ self.probs
        return hit

    def over(self, p: "Dist") -> Floats:
        """Probabilities of the tokens that p lists, in p's order."""
        if p.ids is not None:
            return self.at(p.ids)
        if self.ids is None:
            return self.probs
        dense = np.zeros_like(p.probs)
        dense[self.ids] = self.probs
        return dense

    def prob(self, token: int) -> float:
        """Probability of one token."""
        if self.only is not None:
            return 1.0 if token == self.only else 0.0
        known = self.far.prob(token) if self.far is not None else None
        if known is not None:
            return known
        if self.ids is None:
            return float(self.probs[token])
        return float(self.probs[self.ids == token].sum())

    def minus(self, q: "Dist") -> "Dist":
        """norm(max(p - q, 0)): what is left of p once a token drawn from q was refused (2211.17192, eq. 3).

        Where nothing is left (p = q, so refusal has probability zero up to rounding) it is p itself.
        """
        if self.only is not None:
            return self
        known = self.far.minus(q) if self.far is not None else None
        if known is not None:
            return known
        rest, total = self.beyond(q)
        return Dist(rest / rest.dtype.type(total), self.ids) if total > 0 else self

    def beyond(self, q: "Dist", share: float = 1.0) -> tuple[Floats, float]:
        """max(share p - q, 0) for the tokens that p lists, and its sum."""
        rest = self.probs * self.probs.dtype.type(share)
        if self.ids is not None:
            rest -= q.at(self.ids)
        elif q.ids is None:
            rest -= q.probs
        else:
            rest[q.ids] -= q.probs
        np.maximum(rest, 0, out=rest)
        return rest, float(rest.sum(dtype=np.float64))


@lru_cache(maxsize=1 << 12)
def _depths(parents: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Depth of every node, and of the deepest: trees are of few shapes, which come again and again."""
    found: list[int] = []
    for parent in parents:
        found.append(1 + (found[parent] if parent >= 0 else 0))
    return tuple(found), max(found, default=0)


_ONE: Floats = np.ones(1, np.float32)


@lru_cache(maxsize=1 << 16)
def _point(token: int) -> Dist:
    return Dist(_ONE, np.array([token]), token)


class Target(Protocol):
    """The target's distribution p after every node: `target[node]`, where node -1 is the last committed token."""

    @property
    def text(self) -> Sequence[int]:
        """Prompt and output so far; the last of them is node -1."""
        ...

    def __getitem__(self, node: int, /) -> Dist: ...

    def soft(self, node: int) -> Dist:
        """The same, but at temperature 1 where the request is greedy: by what a rule with a tolerance measures."""
        ...

    def hidden(self, layer: int, node: int) -> Floats:
        """What the target's layer made of the node's token, [hidden]; of layers that the verifier asked for."""
        ...


@dataclass(frozen=True)
class Draft:
    """A tree of guessed tokens. Node i hangs under parents[i] < i; -1 is the last committed token.

    `q[i]` is what token i was drawn from, given that its elder siblings were refused; None there, or no q at all,
    means that the token was chosen: a point mass. Siblings that share one Dist object were drawn i.i.d. from it, and
    their number does not depend on what was drawn. `confidence[i]` is the drafter's own guess that node i is
    accepted if its parent is; of a drawn node it depends on what q was and on the tokens drawn before, never on the
    token that was drawn, so that a planner may drop the node for it (with its descendants and younger siblings) and the
    rest stays drawn from its q. `source` says who guessed each node, or all of them. `error` says, in a sentence, why
    the draft is shorter than it should be: it is counted as a failure, and the drafts of the neighbours stay.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: tuple[Dist | None, ...] | None = None
    confidence: tuple[float, ...] | None = None
    source: str | tuple[str, ...] = ""
    error: str | None = None

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str = "", q: tuple[Dist | None, ...] | None = None) -> "Draft":
        """A draft without branches."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), q, None, source)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents):
            lists[parent].append(node)
        return tuple(tuple(nodes) for nodes in lists)

    def children(self, node: int) -> tuple[int, ...]:
        """Child nodes in the order in which they are to be judged; of the root for -1."""
        return self._children[node]

    def drawn_from(self, node: int) -> Dist:
        """The distribution that `tokens[node]` was drawn from: its q, or a point mass."""
        q = self.q[node] if self.q is not None else None
        return q if q is not None else Dist.point(self.tokens[node])

    def source_of(self, node: int) -> str:
        """Who guessed this node."""
        return self.source if isinstance(self.source, str) else self.source[node]

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node; children of the last committed token have depth 1."""
        return _depths(self.parents)[0]

    @property
    def depth(self) -> int:
        """Of the deepest node; 0 of an empty draft."""
        return _depths(self.parents)[1]

    @cached_property
    def first_child_next_sibling(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same tree in the two arrays that grammar libraries walk; -1 where there is none."""
        first, sibling = [-1] * len(self.tokens), [-1] * len(self.tokens)
        for node, nodes in enumerate(self._children):  # the root's children come last
            if nodes and node < len(self.tokens):
                first[node] = nodes[0]
            for elder, younger in pairwise(nodes):
                sibling[elder] = younger
        return tuple(first), tuple(sibling)

    def only(self, nodes: Sequence[int]) -> "Draft":
        """The draft without its other nodes, the given ones in ascending order; DraftError where it tears.

        A node goes with its descendants and its younger siblings: what is left is drawn as it was.
        """
        if len(nodes) == len(self.tokens):
            return self
        place = {node: at for at, node in enumerate(nodes)}
        for parent in (-1, *nodes):
            kept = [child in place for child in self._children[parent]]
            if sorted(kept, reverse=True) != kept:
                raise DraftError(f"a child of node {parent} stays without an elder sibling; drop younger ones first.")
        if any(self.parents[node] not in place and self.parents[node] >= 0 for node in nodes):
            raise DraftError(f"nodes {list(nodes)} stay without all their parents; drop a node with its descendants.")
        return self._part(nodes)

    def possible(self, allowed: Sequence[bool]) -> "Draft":
        """The draft without chosen nodes that are not allowed, and what hangs below them.

        What is drawn afterwards is what it was, as their refusal changes nothing. Where a sibling was drawn all stay:
        which of them are there may not depend on what was drawn.
        """
        kept = dict[int, None]()
        for node, parent in enumerate(self.parents):
            drawn = self.q is not None and any(self.q[child] is not None for child in self._children[parent])
            if (allowed[node] or drawn) and (parent < 0 or parent in kept):
                kept[node] = None
        return self if len(kept) == len(self.tokens) else self._part(tuple(kept))

    def _part(self, nodes: Sequence[int]) -> "Draft":
        place = {node: at for at, node in enumerate(nodes)}
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(place.get(self.parents[node], -1) for node in nodes),
            tuple(self.q[node] for node in nodes) if self.q is not None else None,
            tuple(self.confidence[node] for node in nodes) if self.confidence is not None else None,
            self.source if isinstance(self.source, str) else tuple(self.source[node] for node in nodes),
            self.error,
        )

    def places_of(self, part: "Draft") -> list[int]:
        """Which nodes of this draft those of `part` are, which `only` or `possible` made of it, else IndexError."""
        found: list[int] = []
        for node, parent in enumerate(part.parents):
            children = self._children[found[parent] if parent >= 0 else -1]
            elder = max((found[child] for child in part.children(parent) if child < node), default=-1)
            same = [child for child in children if child > elder and self.tokens[child] == part.tokens[node]]
            found.append(same[0])
        return found

    def check(self, vocab: int, budget: int) -> None:
        """Raise DraftError unless this is a tree within budget whose tokens exist and could have been drawn."""
        size = len(self.tokens)
        if not isinstance(self.tokens, tuple) or not isinstance(self.parents, tuple):
            raise DraftError("the draft's tokens or parents are no tuple; give tuples, which nobody changes later.")
        if size > budget:
            raise DraftError(f"the draft has {size} nodes and the budget was {budget}; propose at most the budget.")
        columns = (self.parents, self.q, self.confidence, self.source if not isinstance(self.source, str) else None)
        for column in columns:
            if column is not None and len(column) != size:
                message = f"the draft has {size} tokens, but a column of another length"
                raise DraftError(f"{message}; give one entry per token.")
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not isinstance(token, int) or not 0 <= token < vocab:
                raise DraftError(f"drafted token {token!r} does not exist; draft whole ids from 0 to {vocab - 1}.")
            if not isinstance(parent, int) or not -1 <= parent < node:
                raise DraftError(f"node {node} hangs under {parent}; a parent comes before its child, -1 is the root.")
            if self.q is not None and self.q[node] is not None and not self.drawn_from(node).prob(token) > 0:
                raise DraftError(f"node {node} reports q({token}) = 0, so it was not drawn from q; report the true q.")


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Which layers a pass runs: partial depth is asked for, never patched in."""

    layers: tuple[int, ...]  # in order; every other layer is skipped
    logits: bool = True  # apply the final norm and the head to the last of them


class Question(Protocol):
    """What is asked of a work's logits where they lie, so that only the answer has to come to the host."""

    def __call__(self, logits: "torch.Tensor", /) -> "torch.Tensor":
        """[len(work.logits), vocab] -> float64 [n]; it may not wait for the device."""
        ...

    def token(self, answers: "torch.Tensor", /) -> "torch.Tensor":
        """The token that the answers hold for the first row, int64 [1]."""
        ...


class Lot(NamedTuple):
    """Draws that a pass can make itself: of the next token, and where that was drafted of those behind it.

    It ends with the first token that is no node of the draft. Of a constraint it knows nothing.
    """

    sampling: "Sampling"
    keys: Sequence[int]  # of the races (kernels/race.py), one for every depth
    text: Sequence[int] = ()  # prompt and output so far, where that bends logits
    prompt_length: int = 0
    banned: Sequence[int] = ()  # what must not follow the text
    tokens: Sequence[int] = ()  # of the draft's nodes, which nothing bends then
    parents: Sequence[int] = ()
    odds: bool = False  # whether the chances are asked for as well


class Draw(NamedTuple):
    """What came of one draw of a lot."""

    key: int
    token: int
    chance: float = 0.0  # of the token
    norm: float = 0.0  # the root of the sum of all chances squared


class Work(NamedTuple):
    """What the target must run for one request in one pass.

    `tokens` are appended after what the cache holds for `slot`. `parents[i]` is the index within this work of the
    token that i follows, -1 for the last cached token; None means a chain. `base` counts tokens of earlier passes
    that still await judgement (a drafter that grows a tree level by level); `parents` then covers these as well.
    """

    slot: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    base: int = 0
    logits: tuple[int, ...] = ()  # indices of the tokens whose logits are wanted
    hidden: tuple[int, ...] = ()  # layers whose output hidden states are wanted, for every token; -1 is the last
    plan: LayerPlan | None = None
    ask: Question | None = None  # answered where asking saves a transfer
    lot: Lot | None = None  # of its rows of logits: the root's, then one for every node; drawn where the pass can


NO_STATES: Mapping[int, "torch.Tensor"] = MappingProxyType({})


@dataclass(eq=False, slots=True)
class Cut:
    """Rows of a pass's logits that become a tensor of their own when they are asked for: few are, and each costs."""

    whole: "torch.Tensor"  # [rows, vocab]
    first: int
    end: int
    own: "torch.Tensor | None" = None

    @property
    def rows(self) -> "torch.Tensor":
        """The rows [first, end)."""
        if self.own is None:
            self.own = self.whole[self.first : self.end]
        return self.own


class Output(NamedTuple):
    """What came back for one Work."""

    held: "torch.Tensor | Cut"  # its logits
    best: tuple[int, ...]  # the most likely token of every row of logits, the lowest id where several are
    peak: tuple[float, ...]  # its logit; not finite where the row is broken
    mass: tuple[float, ...] | None = None  # where known: sum of e^(logit - peak), so that 1 / mass is its probability
    hidden: Mapping[int, "torch.Tensor"] = NO_STATES  # layer -> [len(work.tokens), hidden]
    answers: Floats | None = None  # to work.ask, where it was answered
    drawn: "tuple[Draw | None, ...]" = ()  # what came of work.lot, by row, as far as it went and tokens are left

    @property
    def logits(self) -> "torch.Tensor":
        """[len(work.logits), vocab]."""
        return self.held.rows if isinstance(self.held, Cut) else self.held


class Segment(NamedTuple):
    """One request's part of a pass: rows [start, start + rows) of the flat tensors."""

    slot: int
    start: int
    rows: int
    past: int  # committed tokens in the cache
    base: int  # tokens of earlier passes after those, not yet judged
    mask: "torch.Tensor | None"  # bool [rows, base + rows], which of the unjudged tokens each row sees; None: causal


@dataclass(frozen=True, slots=True)
class Grid:
    """What a pass of fixed shape attends to: its rows as a rectangle of chains, each with its own entries of the cache.

    A request is a chain, or one per leaf of its tree. An entry is seen by how many positions it lies behind a row:
    entry j of a chain is at position j as far as `settled`, and from there on as `tree` says.
    """

    to: "torch.Tensor"  # int64 [rows], the cache row that takes a row's keys and values; for padding the scratch row
    cells: "torch.Tensor"  # int64 [rows], where a row stands in the rectangle [chains * width]
    shown: "torch.Tensor"  # int64 [chains * width], the row that stands there; where none does, any row
    table: "torch.Tensor"  # int64 [chains, context], the cache row of each entry; after the last one, the first again
    settled: "torch.Tensor"  # int64 [chains]
    tree: "torch.Tensor"  # int64 [rows, columns], positions that an unsettled entry lies behind; negative: not seen
    kernel: str = "sdpa"  # which attention reads it; see layers/padded.py


@dataclass(frozen=True, slots=True)
class Pass:
    """One flattened forward for everybody; ragged, or padded to a fixed shape where it has a grid."""

    tokens: "torch.Tensor"  # int64 [rows]
    positions: "torch.Tensor"  # int64 [rows]
    segments: tuple[Segment, ...]
    logits: "torch.Tensor | None"  # int64 [n], rows whose logits are wanted; None: all
    hidden: tuple[int, ...] = ()
    plan: LayerPlan | None = None
    grid: Grid | None = None  # what rows write and see, instead of the segments


class Flat(NamedTuple):
    """All works of a pass as one list of rows, on the host."""

    tokens: list[int]
    positions: list[int]
    wanted: list[int]  # rows whose logits are asked for
    segments: Sequence[Segment]  # without masks until `masked` has put them there
    trees: Sequence[tuple[int, ...] | None]  # parents of every segment's unjudged tokens, earlier passes' included
    hidden: tuple[int, ...]
    plan: LayerPlan | None
    lots: Sequence[tuple[int, Lot]] = ()  # each with the first of the wanted rows that it is about


class Best(NamedTuple):
    """The rule by which the best tree grows (2406.17276), for who grows it in one go."""

    nodes: int  # of the draft, at most
    levels: int  # passes, at most
    gain: float  # the least number of expected tokens for which one more level is grown
    bar: float = 0.0  # the least chance of a node, with its whole path

    @property
    def beyond(self) -> int:
        """How many nodes are looked behind, at most."""
        return self.nodes * (self.levels - 1)


class Sprout(NamedTuple):
    """Where the best tree grows: behind tokens of one slot, which its cache counts as read (`Cache.read_ahead`)."""

    past: int  # committed tokens before those
    tokens: Sequence[int]
    runs: list[tuple[int, int]]  # where all of these lie in the cache, and `beyond` nodes
    rule: Best


class Grown(NamedTuple):
    """A tree that has grown so."""

    tokens: tuple[int, ...]  # of the draft's nodes
    parents: tuple[int, ...]  # -1: the root
    chances: tuple[float, ...]  # of every node, after its parent
    read: list[int]  # which of them was looked behind, by entry of the cache; -1: one that is not in the draft
    widths: list[int]  # entries of every pass after the first
    sound: bool  # whether all logits were finite; else growth ended there


@dataclass(eq=False, slots=True)
class Bar:
    """What the chance of a node and its whole path must reach, as its drafter sees it, for the node to pay its row.

    A planner sets it. Drafters may heed it where tokens are chosen; of drawn ones none is left out for its chance.
    """

    chance: float = 0.0
    heeded: bool = False  # whether the drafter leaves out what does not reach it


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What a model returns for a Pass, still flat."""

    logits: "torch.Tensor"  # [n, vocab]
    hidden: Mapping[int, "torch.Tensor"]  # layer -> [rows, hidden]
    peaks: "Peaks | None" = None  # where the model found them on its way
    answers: "Sequence[Floats | None]" = ()  # one per work, where questions were answered


@dataclass(frozen=True, slots=True)
class Peaks:
    """What stands out in rows of logits."""

    best: Sequence[int]  # the first most likely token of every row
    peak: Sequence[float]  # its logit; NaN where the row has one
    mass: Sequence[float] | None = None  # sum of e^(logit - peak): the best token's probability is 1 / mass
    drawn: Sequence[tuple[int, float, float]] | None = None  # where there are lots: as a Draw; -1: none was made


class Verdict(NamedTuple):
    """The accepted nodes, root first, and the token that the target adds after them."""

    path: tuple[int, ...]
    token: int


class Outcome(NamedTuple):
    """What became of one request's part of a pass. No draft and no verdict while its prompt is still being read."""

    work: Work
    output: Output
    draft: Draft | None = None
    verdict: Verdict | None = None


class Guide(Protocol):
    """Where one request's text stands in its constraint. Committed tokens move it; drafted ones are only looked at."""

    @property
    def written(self) -> int:
        """Tokens of the output that it has read."""
        ...

    @property
    def trouble(self) -> str:
        """Why nothing may follow what is written, where the constraint itself is to blame, in a sentence; else ""."""
        ...

    def masks(self, paths: Sequence[Sequence[int]]) -> Bools:
        """Which tokens may follow what is written and each path [paths, vocab]; none behind a forbidden one.

        To be read only.
        """
        ...

    def bits(self, paths: Sequence[tuple[int, ...]]) -> list[npt.NDArray[np.uint8]]:
        """The same of each path as bits [vocab / 8, rounded up], the lowest of a byte first."""
        ...

    def foresee(self, paths: Sequence[tuple[int, ...]]) -> None:
        """Masks behind these paths may be asked for soon: they may be found meanwhile."""
        ...

    def allows(self, paths: Sequence[tuple[int, ...]]) -> list[bool]:
        """Whether each path may be written, an end of the text at its end too; cheaper than masks."""
        ...

    def forced(self, path: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that the constraint leaves no choice about, behind a path."""
        ...

    def advance(self, token: int) -> bool:
        """Read a committed token; whether the text is complete with it and cannot go on."""
        ...


def salted(scope: str, salt: str) -> str:
    """A part of a scope: what is left there is found with the same salt only. The salt itself is not told by it."""
    return f"{scope}\0{sha256(salt.encode(errors='surrogatepass')).hexdigest()[:32]}"


def owner(scope: str) -> str:
    """Whose a scope is, whatever its salt: limits, shares and turns are his."""
    return scope.partition("\0")[0]


@dataclass(frozen=True, slots=True)
class Context:
    """What a member may see of one request; `tokens` grows between steps and is not the member's to change."""

    id: int
    tokens: Sequence[int]  # prompt, then everything committed
    prompt_length: int
    sampling: "Sampling"
    rng: "Rng"
    state: Any = None  # what the member's own `start` returned
    scope: str = ""  # whose request it is: what one scope wrote is never shown to another
    prediction: tuple[int, ...] = ()  # what the caller expects the output to be
    ahead: tuple[int, ...] = ()  # tokens after these that nobody has judged yet; a drafter may be asked to go on there
    first: tuple[int, ...] = ()  # what may come next, in the target's own opinion; a tree may begin with it
    guide: Guide | None = None  # of a request with a constraint


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural-log probability of an emitted token under the model's raw logits, with the best alternatives."""

    value: float
    rank: int  # 1 for the most likely token
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), best first


class Emission(NamedTuple):
    """One committed token: its id and who guessed it."""

    token: int
    source: str
    logprob: Logprob | None = None


class Turn(NamedTuple):
    """What one step made of one request: tokens, and the rows of its Work that stay in the cache."""

    emissions: tuple[Emission, ...]
    keep: tuple[int, ...]  # indices into work.tokens, in order
    drafted: int = 0
    depth: int = 0  # of the draft's deepest node: how many tokens could have been accepted
    error: str | None = None  # this request cannot go on; its neighbours can


class Event(NamedTuple):
    """News of one request: tokens of one step, the text that became certain, and the end if it came."""

    request: int
    emissions: tuple[Emission, ...]
    text: str
    finish_reason: str | None = None  # stop, length, abort or error
    error: str | None = None
    time: float = 0.0  # seconds on the engine's clock
    stats: Any = None  # engine.stats.RequestStats, with the last event
    draft: Draft | None = None  # what was judged in the step; None where there was no step
    path: tuple[int, ...] = ()  # its accepted nodes, root first, as far as the request goes
    prompt_logprobs: tuple[Logprob | None, ...] = ()  # with the first tokens, if asked for; None of the prompt's first


SCALE_BYTES = 4  # of what int8 keys or values of one entry and head are multiplied with


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a model stores per token and layer: one entry of `heads` and `dims` per layer."""

    heads: tuple[int, ...]
    dims: tuple[int, ...]
    dtype: "torch.dtype"  # of keys and values as a cache is given them and gives them back
    device: "torch.device"
    kept: "torch.dtype | None" = None  # in between, where it is not dtype; int8: with a scale per entry and head

    @property
    def stored(self) -> "torch.dtype":
        """What memory holds."""
        return self.kept or self.dtype

    @property
    def token_bytes(self) -> int:
        """Memory of one token's keys and values in all layers."""
        scale = 0 if self.stored.is_floating_point else SCALE_BYTES
        return sum(2 * h * (d * self.stored.itemsize + scale) for h, d in zip(self.heads, self.dims, strict=True))


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a text must be: the name of a constraint, with its options where it has some, and what that one reads."""

    name: str
    text: str = ""


Monitor = Callable[[str], Sequence[str] | None]  # the text so far -> of what it must take one; None: of no matter


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn, and when to stop. Immutable; every field is honoured on every drafted node.

    Cut-offs apply in the order of the fields. Ties go to the lowest id. Temperature 0 is greedy: the most likely
    token after penalties, biases and bans.
    """

    temperature: float = 1.0
    top_k: int = 0  # keep the k most likely tokens; 0: all
    top_p: float = 1.0  # keep the smallest set with at least this mass
    min_p: float = 0.0  # keep tokens with at least this share of the top probability
    typical_p: float = 1.0  # keep the tokens nearest to the entropy, to at least this mass (2202.00666)
    epsilon_cutoff: float = 0.0  # drop tokens below this probability (2210.15191)
    eta_cutoff: float = 0.0  # drop tokens below min(eta, sqrt(eta) exp(-entropy)) (2210.15191)
    repetition_penalty: float = 1.0  # prompt and output; divides positive logits, multiplies negative (1909.05858)
    presence_penalty: float = 0.0  # output only
    frequency_penalty: float = 0.0  # output only, per occurrence
    no_repeat_ngram: int = 0  # ban tokens that would repeat an n-gram of this length
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()  # token sequences that must not appear
    allowed_tokens: tuple[int, ...] | None = None  # nothing else may be drawn
    constraint: Constraint | None = None  # what the whole output must be; no end before, and none but that after it
    min_tokens: int = 0  # no end-of-sequence and no stop token before this many
    max_tokens: int | None = None  # None: until the context is full
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # None: a fresh seed, reported in the result
    logprobs: int | None = None  # report the token's logprob and this many alternatives
    prompt_logprobs: int | None = None  # the same of the prompt's tokens, which are then read without a prefix cache

    def __post_init__(self) -> None:
        from forerun.config import check_sampling, settle  # the limits and their sentences live with the other parsing

        settle(self)
        check_sampling(self)

    @property
    def greedy(self) -> bool:
        """Whether the distribution is a point mass on the most likely token."""
        return self.temperature == 0

    @cached_property
    def best(self) -> bool:
        """Whether every token is the most likely one of its own row, whatever was written."""
        return self.greedy and not self.bends and not self.min_tokens and self.constraint is None

    @cached_property
    def cuts(self) -> bool:
        """Whether it asks for a cut-off."""
        most = self.top_p < 1 or self.typical_p < 1
        return most or self.top_k > 0 or self.min_p > 0 or self.epsilon_cutoff > 0 or self.eta_cutoff > 0

    @cached_property
    def bends(self) -> bool:
        """Whether it asks for penalties, bans or biases, but for the end's before `min_tokens`."""
        return self.penalizes or self.bans

    @cached_property
    def penalizes(self) -> bool:
        """Whether it asks for penalties."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)

    @cached_property
    def bans(self) -> bool:
        """Whether it asks for bans or biases, but for the end's before `min_tokens`."""
        return bool(self.no_repeat_ngram or self.logit_bias or self.bad_words or self.allowed_tokens is not None)

    @cached_property
    def biases(self) -> tuple[Ints, Floats]:
        """`logit_bias` as ids and numbers in float64."""
        return np.array(list(self.logit_bias), np.int64), np.array(list(self.logit_bias.values()), np.float64)

    @cached_property
    def allowed(self) -> Ints | None:
        """`allowed_tokens` as an array."""
        return None if self.allowed_tokens is None else np.array(self.allowed_tokens, np.int64)


class Runner(Protocol):
    """A second model with its own cache, as a drafter may use it."""

    info: Any  # models.contract.ModelInfo
    cache: Any  # caches.contract.Cache

    def run(self, work: Sequence[Work]) -> list[Output]:
        """One flat pass."""
        ...

    @property
    def lends(self) -> bool:
        """Whether logits are valid until the next pass only."""
        ...

    def follows(self, *, asks: bool) -> bool:
        """Whether `follow` is there for works that ask for more than best tokens, or for those that do not."""
        ...

    def follow(self, steps: Iterable[Sequence[Work]]) -> list[list[Output]]:
        """Passes in a row: from the second on, a work's one token is what its slot found before."""
        ...

    @property
    def branches(self) -> bool:
        """Whether `follow_best` is there."""
        ...

    def follow_best(self, sprouts: Sequence["Sprout"]) -> list["Grown"]:
        """Read tokens that the cache counts as read, and grow the best tree behind each."""
        ...

    @property
    def aside(self) -> bool:
        """Whether `begin_best` is there."""
        ...

    def begin_best(self, sprouts: Sequence["Sprout"]) -> Callable[[], list["Grown"]]:
        """The same beside what the host does; until what comes back was called, the cache is not to be used."""
        ...


class Spelling(Protocol):
    """A tokenizer as what its tokens write, as a drafter may use it."""

    pieces: Sequence[bytes | str | None]  # of every token: bytes; a special token's name; None where there is neither
    ids: Mapping[bytes | str, int]  # the token that writes a piece; the highest of several: single bytes come first
    begin: Sequence[int]  # tokens before every text
    lead: bytes  # what the encoding of a text has before it: a space, in many vocabularies

    def __hash__(self) -> int: ...

    def spell(self, tokens: Sequence[int]) -> list[bytes | str]:
        """What tokens write: the bytes between special tokens, and their names."""
        ...

    def encode(self, data: bytes, *, first: bool = False) -> list[int]:
        """Tokens of bytes that go on, or that are the `first` of a text; bytes of no character stand alone."""
        ...


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a pass by its rows, and by the context that these attend to."""

    rows: tuple[int, ...]  # ascending, two or more
    seconds: tuple[float, ...]  # never falling; of one request that has `context` tokens
    slopes: tuple[float, ...] = ()  # seconds for each token of context, by rows; none: it costs nothing
    context: int = 0  # tokens
    alone: bool = True  # no other process had the cores meanwhile; else they hold for as long as it has

    def of(self, rows: int, context: float | None = None, requests: int = 1) -> float:
        """Between two measured widths by a straight line, which goes on behind the last.

        `context`: tokens that the requests of the pass have together; None: as they were measured, for one request.
        """
        found = self._between(self.seconds, rows)
        if context is None or not self.slopes:
            return found
        each = self._between(self.slopes, rows / requests)  # a row attends to its own request
        return found - self.context * self._between(self.slopes, rows) + context * each

    def _between(self, values: tuple[float, ...], rows: float) -> float:
        at = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        (first, second), (low, high) = self.rows[at - 1 : at + 1], values[at - 1 : at + 1]
        return low + (high - low) * (rows - first) / (second - first)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a member may use while it is built."""

    vocab: int
    context_length: int
    eos: tuple[int, ...]
    max_requests: int
    device: "torch.device"
    dtype: "torch.dtype"
    open_model: Callable[[str, str, str], Runner]  # a second model: (folder or toy name, name of a cache, dtype)
    open_spelling: Callable[[str], Spelling]  # of a model's tokenizer; "" is the target's
    open_drafter: Callable[[str, "Setup"], Any]  # a further drafter, spelled; its failures cost its drafts only
    costs: Callable[[], Costs]  # of the target's passes; measured when nobody has before, on this machine
    open_tree: Callable[[str], Any]  # the shape of drafts: a trees.contract.Tree, as it is spelled
    drafter: Facts = Facts()  # what the chosen drafter declares; for planners
    hidden_size: int = 0
    num_layers: int = 0
    companion: str | None = None  # folder of the drafter that the target's own folder names
    store: "Shelf | None" = None  # where a drafter keeps what it learns; None: nowhere
    monitors: Mapping[str, Monitor] = field(default_factory=dict)  # the caller's own, for constraints by name
    branches: bool = True  # whether the target's cache holds trees
    bar: Bar = field(default_factory=Bar)  # one for all members of an engine
