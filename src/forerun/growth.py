"""A draft while it grows: its nodes, what may be looked at for the next ones, and what becomes a Draft.

Does not: run anything. A drafter answers the looks that its tree asks, level by level for all requests at once.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Self

import numpy as np

from forerun.look import Child, Drawn, Likeliest, Look, Origin
from forerun.rng import Purpose
from forerun.sampling import Path, Shaper
from forerun.types import Context, Dist, Draft, Floats, Output

ROOT = -1
UNSOUND = "the drafter's logits are not finite; check its weights and dtype."
Looks = Generator[Look, None, None]  # what a tree asks; closed early where there is no answer


@lru_cache(maxsize=1024)
def leaves(parents: tuple[int, ...], base: int) -> list[tuple[list[int], list[int]]]:
    """The path to every leaf from `base` on, and the nodes from `base` on that no path before it holds: its last."""
    inner, seen = set(parents), set[int]()
    found: list[tuple[list[int], list[int]]] = []
    for leaf in range(base, len(parents)):
        if leaf in inner:
            continue
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        path.reverse()
        fresh = [node for node in path if node >= base and node not in seen]
        seen.update(fresh)
        found.append((fresh, path))
    return found


@dataclass(eq=False)
class Growth:
    """One request's draft: at most `budget` nodes, at most `depth` levels, as `grow` says."""

    context: Context
    budget: int
    depth: int
    grow: "Callable[[Growth], Looks]"
    eos: tuple[int, ...] = ()  # ids that end a text
    bar: float = 0.0  # the least chance of a chosen node, with its whole path
    parents: list[int] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)  # by node
    kept: Sequence[int] | None = None  # nodes of the draft, parents first, where not all are
    error: str | None = None  # why it cannot grow any further
    looking: bool = False  # whether there is one more look to answer
    asked: list[tuple[Look, int]] = field(default_factory=list)  # all looks so far, and how many nodes there were then

    def __post_init__(self) -> None:
        context = self.context
        shaper = Shaper.of(context, self.eos)
        self.origin = Origin(shaper, context.rng, self.path)
        self.looks = self.grow(self)
        self.go_on()

    def __len__(self) -> int:
        return len(self.parents)

    def likeliest(
        self, nodes: Sequence[int], count: int, *, traits: bool = False, hidden: tuple[int, ...] = ()
    ) -> Likeliest:
        """Look for the `count` most likely tokens after every node."""
        return Likeliest(self.origin, nodes, count, traits=traits, hidden=hidden)

    def drawn(
        self,
        nodes: Sequence[int],
        count: int,
        *,
        again: bool = False,
        traits: bool = False,
        hidden: tuple[int, ...] = (),
    ) -> Look:
        """Look for `count` tokens drawn after every node, `again`: with replacement; likeliest where it is greedy."""
        if self.greedy:
            return self.likeliest(nodes, count, traits=traits, hidden=hidden)
        return Drawn(self.origin, nodes, count, traits=traits, again=again, hidden=hidden)

    def go_on(self) -> None:
        """To the next look, if there is one."""
        look = next(self.looks, None) if self.error is None and self.budget > 0 else None
        self.looking = look is not None
        if look is not None:
            self.asked.append((look, len(self)))

    @property
    def newest(self) -> Look:
        """The look that was asked last."""
        return self.asked[-1][0]

    def answer(self, number: int, output: Output) -> None:
        """What the pass of look `number` found. A broken row ends the growth: nothing below it is drafted."""
        look, before = self.asked[number]
        if self.error is None and all(map(isfinite, output.peak)):
            look.read(output)
        elif self.error is None:
            self.error = UNSOUND
            del self.parents[before:], self.children[before:]

    def choose(self, weights: Sequence[float], depth: int, number: int) -> int:
        """Which of several things happens, by their weights; `number` tells such choices at one depth apart."""
        p = np.array(weights)
        return self.context.rng.categorical(Dist(p / p.sum()), Purpose.DRAFT, depth, -1 - number)

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.context.sampling.greedy

    def plant(self, parent: int, child: Child) -> int:
        """A new node."""
        self.parents.append(parent)
        self.children.append(child)
        return len(self.parents) - 1

    def path(self, node: int) -> Path:
        """What stands after the committed tokens down to a node, itself included."""
        found: list[int] = []
        while node >= 0:
            found.append(self.children[node].token)
            node = self.parents[node]
        return (*self.context.ahead, *reversed(found))

    def draft(self, source: str) -> Draft:
        """What has grown, whether the tree was done or not."""
        self.looks.close()
        found, parents = self.children, self.parents
        if self.kept is not None:
            at = {ROOT: ROOT, **{node: i for i, node in enumerate(self.kept)}}
            found, parents = [found[node] for node in self.kept], [at[parents[node]] for node in self.kept]
        q = tuple(child.q for child in found)
        return Draft(
            tuple(child.token for child in found),
            tuple(parents),
            q if any(one is not None for one in q) else None,
            tuple(child.confidence for child in found),
            source,
            self.error,
        )


class Pool:
    """Likely tokens that may become nodes of a growth, by the probability of the whole path down to each.

    Its numbers are candidates, in the order in which they were found; only those that are looked behind or kept become
    nodes. All are chosen, so any may be left out. At the end of a `with` the `size` likeliest are the draft.
    """

    def __init__(self, growth: Growth, size: int) -> None:
        self.growth, self.size, self.nodes = growth, size, {ROOT: ROOT}
        self.reach: Floats = np.empty(0)
        self.found: list[tuple[int, Likeliest, int, int]] = []  # the candidate below which it is, and where it was seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.growth.kept = self.plant(sorted(self.best())) if self.found else []

    def look(self, behind: Sequence[int], count: int) -> Likeliest:
        """Look for the likeliest tokens after candidates, or after the root."""
        return self.growth.likeliest(self.plant(behind), count)

    def add(self, behind: Sequence[int], look: Likeliest) -> int:
        """What a look behind these candidates has found; the number of the first new candidate."""
        before, (rows, columns) = len(self.found), look.chances.shape
        above = np.array([self.reach[candidate] if candidate != ROOT else 1.0 for candidate in behind])
        self.reach = np.concatenate([self.reach, (above[:, None] * look.chances).ravel()])
        self.found += [(behind[row], look, row, column) for row in range(rows) for column in range(columns)]
        return before

    def best(self, since: int = 0, count: int | None = None) -> list[int]:
        """The likeliest candidates, best first, the earliest found where several are equal; `count`: not `size`."""
        order = np.argsort(-self.reach[since:], kind="stable")[: self.size if count is None else count] + since
        reach, bar = self.reach, self.growth.bar
        return [candidate for candidate in order.tolist() if reach[candidate] > 0 and reach[candidate] >= bar]

    def promising(self, candidates: Iterable[int]) -> list[int]:
        """Those below which there may be one of the likeliest."""
        best = self.best()
        least = self.reach[best[-1]] if len(best) == self.size else 0.0
        return [candidate for candidate in candidates if self.reach[candidate] > least]

    def plant(self, candidates: Iterable[int]) -> list[int]:
        """The nodes of candidates, in ascending order."""
        return [self._node(candidate) for candidate in candidates]

    def _node(self, candidate: int) -> int:
        if candidate not in self.nodes:
            parent, look, row, column = self.found[candidate]
            self.nodes[candidate] = self.growth.plant(self._node(parent), look.chosen(row, column))
        return self.nodes[candidate]


def beam(growth: Growth, width: int, threshold: float = 0.0) -> Looks:
    """Plant the `width` likeliest nodes of every level whose paths are at least as likely as the threshold."""
    pool, level = Pool(growth, growth.budget), [ROOT]
    for _ in range(growth.depth):
        room = min(width, growth.budget - len(growth))
        if not level or room < 1:
            return
        look = pool.look(level, room)
        yield look
        best = pool.best(pool.add(level, look), room)
        level = sorted(candidate for candidate in best if pool.reach[candidate] >= threshold)
        pool.plant(level)


def best_first(growth: Growth, nodes: int, width: int, beams: int) -> Looks:
    """Plant the `nodes` likeliest paths of all, with at most `width` children each; `beams` are seen per pass."""
    behind, seen = [ROOT], set[int]()
    with Pool(growth, nodes) as pool:
        for _ in range(growth.depth):
            look = pool.look(behind, width)
            yield look
            pool.add(behind, look)
            seen.update(behind)
            behind = pool.promising([candidate for candidate in pool.best() if candidate not in seen])[:beams]
            if not behind:
                return
