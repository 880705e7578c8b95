"""The best acceptance that any exact rule can have (2502.18779), reached by a choice whose law fits p.

Of k drafts from q, the most that any set A of tokens can be chosen is g(q(A)) = 1 - (1 - q(A))^k. The dual of the
optimal transport is then solved by a prefix of the tokens in order of p / q: refusal has probability
max(p(A) - g(q(A))) over prefixes A. With A found, the choice is to have the law m = clip(p, d q, c q), which no set
forbids, and the chosen draft is accepted with probability min(1, p / m). How to draw from m: see `Block`.
Drafts that were chosen are judged after those that were drawn, which is optimal for the greedy drafts of the paper
(all chosen but the last).
Does not: reach the optimum for tokens drawn without replacement, which are judged one after the other, as by
`rejection`; tell apart tokens whose p / q agree to 1/256 where the vocabulary is large, which costs less than a
thousandth of acceptance and no exactness.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np

from forerun.types import Dist, Facts, Floats, Ints
from forerun.verifiers.contract import Judged, Siblings, SiblingVerifier
from forerun.verifiers.rejection import in_turn

APART = 4096  # tokens, of which all are told apart
_BITS = 8  # of p / q, beyond its power of two, that tell tokens apart in larger vocabularies
_LEAST, _MOST = 2.0**-12, 2.0**6  # p / q below and above which they are not told apart


class OptimalVerifier(SiblingVerifier):
    """As many drafts accepted as any rule can."""

    facts = Facts(keys=("optimal-multidraft",), paper="2502.18779", evidence="docs/results/README.md#acceptance")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def judge(self, p: Dist, siblings: Siblings) -> Judged:
        q = siblings.draft.q
        if q is None or p.ids is not None:
            return in_turn(p, siblings)
        drawn = replace(siblings, nodes=tuple(node for node in siblings.nodes if q[node] is not None))
        chosen = replace(siblings, nodes=tuple(node for node in siblings.nodes if q[node] is None))
        child, p = jointly(p, drawn.shared, drawn) if drawn.shared is not None else in_turn(p, drawn)
        return (child, p) if child is not None else in_turn(p, chosen)

    def acceptance(self, p: Floats, q: Floats, count: int) -> float:
        return float(np.minimum(p, Plan.of(p, q, count).law(q)).sum(dtype=np.float64))


def jointly(p: Dist, q: Dist, siblings: Siblings) -> Judged:
    """Choose one of several i.i.d. drafts, and judge it."""
    dense = q.over(p)
    plan = Plan.of(p.probs, dense, len(siblings.nodes))
    node = plan.choose(siblings)
    x = siblings.draft.tokens[node]
    m = q.prob(x) * float(plan.worth[plan.cell[x]])
    if siblings.accepts(node, p.prob(x) / (m or 1.0)):  # zero only by rounding, where p is too
        return node, p
    return None, p.minus(Dist(plan.law(dense)))


@dataclass(frozen=True)
class Plan:
    """How one of several drafts is chosen. Tokens are put into cells, which stand in descending order of p / q."""

    cell: Ints  # of every token
    worth: Floats  # of every cell: m / q
    reach: Floats  # as in Block
    most: Floats
    part: Floats
    touch: int  # the border at which `part` is `most`

    @classmethod
    def of(cls, p: Floats, q: Floats, count: int) -> "Plan":
        cell = _cells(p, q)
        wanted, held = (np.bincount(cell, part).astype(np.float64, copy=False) for part in (p, q))
        sought, reach = _upto(wanted), _upto(held)
        most = 1 - (1 - reach) ** count
        touch = int((sought - most).argmax())
        curve = sought - (sought - most)[touch]  # below `most` everywhere; tangents from both ends make it concave
        ceiling = _share(curve, reach, 0.0)[: touch + 1].max()
        floor = _share(1 - curve, 1 - reach, np.inf)[touch:].min()
        ratio = _share(wanted, held, 0.0)
        worth = np.concatenate((np.minimum(ratio[:touch], ceiling), np.maximum(ratio[touch:], floor)))
        return cls(cell, worth, reach, most, _upto(worth * held), touch)

    def law(self, q: Floats) -> Floats:
        """The law m of the choice."""
        return q * self.worth.astype(q.dtype)[self.cell]

    def choose(self, siblings: Siblings) -> int:
        """The chosen node."""
        places = {node: int(self.cell[siblings.draft.tokens[node]]) for node in siblings.nodes}
        before = {node: place for node, place in places.items() if place < self.touch}
        ends = (0, self.touch) if before else (self.touch, len(self.worth))
        places, numbers = before or places, count(len(siblings.draft))
        block: Block | None = Block(self.reach, self.most, self.part, *ends, back=not before)

        def decide(chance: float) -> bool:
            return siblings.accepts(next(numbers), chance)

        while block is not None and len(set(places.values())) > 1:
            ahead = block.ahead(len(siblings.nodes))
            if ahead is not None:
                return block.foremost(places, {node for node, at in places.items() if decide(ahead[at - block.low])})
            places, block = block.split(places, decide)
        return next(iter(places))


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of a hull, between two borders; `slope` is the chance that the block is split as far as here."""

    low: int
    high: int
    slope: float


@dataclass(frozen=True)
class Block:
    """Neighbouring cells, and how often their drafts are to be chosen.

    At every border between cells: `reach` is q's mass before it, `most` the largest part of the choice that this mass
    can have, which it has where earlier cells come first; `part` is the one that it is to have, below `most` and equal
    to it at both ends of the block. Two ways lead there, both our own construction.

    `ahead`: drafts take places of which the foremost is chosen. From one end of the block (the far one where `back`),
    every cell's mass goes to the places directly before and behind those of the cells before it, so divided that
    together they have their part. That gives cells a law if these places only grow, on both sides.

    `edge` and `within`: to take any draft of the block makes the part a straight line; to prefer those before some
    border lifts it there to the most. `part` is a mixture of such lines: drawn over `most`, both per mass from the
    block's beginning, it has a hull, whose vertices are the borders that the block is split at, the last ones first;
    an edge's slope is the chance to come as far. Between two vertices there is a smaller block.
    """

    reach: Floats
    most: Floats
    part: Floats
    low: int
    high: int
    back: bool

    def ahead(self, count: int) -> Floats | None:
        """The chance of every cell to take a place before the others, not behind; None where they do not only grow.

        The places of the first cells, together s of q, are those from a on with g(a + s) - g(a) = their part; in
        y = 1 - a that is y^count - (y - s)^count, convex, and found from above (Newton).
        """
        end, way = (self.high, -1) if self.back else (self.low, 1)
        here = np.arange(self.low, self.high + 1)[::way]
        length, part = abs(self.reach[here] - self.reach[end]), abs(self.part[here] - self.part[end])
        left = np.full_like(length, 1 - self.reach[self.low])  # q's mass from the front place on
        for _ in range(_NEWTON):
            behind = left - length
            power, power_behind = left ** (count - 1), behind ** (count - 1)
            slope, over = count * (power - power_behind), power * left - power_behind * behind - part
            if over.max() < _ROUNDING:
                break
            left -= _share(over, slope, 0.0)
        else:
            return None
        empty = int(np.searchsorted(length, 0, side="right"))
        left[:empty] = left[min(empty, len(left) - 1)]
        steps, width = np.diff(left), np.diff(length)
        if (np.maximum(-steps, steps - width) * slope[1:] > _ROUNDING).any():
            return None
        return np.clip(_share(steps, width, 0.0), 0, 1)[::way]

    def foremost(self, places: Mapping[int, int], early: Container[int]) -> int:
        """The node that stands before all others, where these went ahead of the cells before theirs."""
        first = {node: place for node, place in places.items() if node in early}
        outermost = max if bool(first) != self.back else min
        place = outermost((first or places).values())
        return next(node for node, at in (first or places).items() if at == place)

    def split(self, places: dict[int, int], decide: Callable[[float], bool]) -> "tuple[dict[int, int], Block | None]":
        """The nodes of which one is to be chosen, and the smaller block that says which; None: any, so the eldest."""
        passed = 0.0
        for first in sorted(set(places.values())):
            edge = self.edge(first)
            if decide((edge.slope - passed) / (1 - passed)):
                before = {node: place for node, place in places.items() if place < first}
                if before:
                    return before, None
                return {node: place for node, place in places.items() if place < edge.high}, self.within(edge)
            passed = edge.slope
        return places, None

    @cached_property
    def means(self) -> tuple[Floats, Floats]:
        """`most` and `part` per mass, from the block's beginning to each border behind it."""
        length, most, part = (
            side[self.low + 1 : self.high + 1] - side[self.low] for side in (self.reach, self.most, self.part)
        )
        return _share(most, length, 0.0), _share(part, length, -np.inf)

    def edge(self, place: int) -> Edge:
        """The edge that spans a cell."""
        most, part = self.means
        low, high, place = 0, len(most) - 1, place - self.low - 1
        if place < 0:  # of the first cell nothing can be split off
            return Edge(self.low, self.low + 1, 0.0)
        while True:
            run = most[low] - most[high]
            slope = (part[low] - part[high]) / run if run > 0 else 0.0
            above = part[low : high + 1] - slope * most[low : high + 1]
            top = low + int(above.argmax())
            if top in {low, high} or above[top - low] <= above[0] + _ROUNDING:
                return Edge(self.low + 1 + low, self.low + 1 + high, min(max(slope, 0.0), 1.0))
            low, high = (top, high) if top <= place else (low, top)

    def within(self, edge: Edge) -> "Block":
        """The cells under an edge, where the block is split at both of its ends."""
        most, part = self.means
        end, inner = edge.high - self.low - 1, slice(edge.low, edge.high + 1)
        lifted = self.part.copy()
        mean = most[end] + (part[edge.low - self.low - 1 : end + 1] - part[end]) / edge.slope
        lifted[inner] = self.most[self.low] + mean * (self.reach[inner] - self.reach[self.low])
        return Block(self.reach, self.most, lifted, edge.low, edge.high, self.back)


_NEWTON = 50  # steps at most; some six are usual
_ROUNDING = 1e-14


def _share(part: Floats, whole: Floats, otherwise: float) -> Floats:
    found: Floats = np.divide(part, whole, out=np.full_like(part, otherwise), where=whole > 0)
    return found


def _upto(mass: Floats) -> Floats:
    """The share of the mass before every border between cells; 0 first, 1 last."""
    total = np.cumsum(mass)
    return np.concatenate(([0.0], total / total[-1]))


def _cells(p: Floats, q: Floats) -> Ints:
    """The cell of every token."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = p / q
    if len(p) <= APART:
        cell: Ints = np.unique(-np.fmax(ratio, 0), return_inverse=True)[1]
        return cell
    bits = np.minimum(np.fmax(ratio, _LEAST), _MOST, dtype=np.float32).view(np.int32) >> (23 - _BITS)
    return np.int64(bits.max()) - bits
