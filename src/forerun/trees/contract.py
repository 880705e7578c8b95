"""What a tree is: the shape and growth of a draft, from the distributions that a drafter finds.

A tree asks looks, one after the other: a drafter answers the looks of all requests of a step in one pass, and the tree
plants what it found. It never learns whose distributions they are.

Two laws make a draft exact. Whether a drawn token is drafted may depend on everything that was drawn before it, and on
nothing of itself: only its descendants may be left out because it turned out unlikely. And siblings stand in the order
in which they were drawn. Chosen tokens are free of both.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar, final

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth, Looks
from forerun.look import Look, Traits
from forerun.member import Member
from forerun.types import Best, Setup

Found = TypeVar("Found")


class Tree(Member):
    """Grows drafts; `self` holds options, and what a growth knows lives in its generator."""

    levels: int = 6  # a drafter's passes per draft, where it is not told a number
    blind: bool = False  # a chain that never looks at what it planted, so that a device can go on by itself
    recalls: int = 0  # how many of `Context.first` it wants
    hidden: tuple[int, ...] = ()  # layers of the drafter's model whose states its looks ask for
    state_size: int = 0  # numbers in all of these together

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def grow(self, growth: Growth) -> Looks:
        """Plant at most growth.budget nodes on at most growth.depth levels.

        A look is answered when the generator goes on; it may not go on at all. A node is looked behind at most once.
        """

    def best(self, budget: int, depth: int) -> Best | None:
        """The rule by which it grows, where that is the best tree's: then a model may do so in one go."""
        return None


class StoppingChain(Tree):
    """Lifts a rule that ends a chain early."""

    levels: int = 8
    traits: bool = True  # whether the rule wants to know them

    @abstractmethod
    def stops(self, traits: Sequence[Traits], reach: float) -> bool:
        """Whether the chain ends after its newest token.

        `traits` of the distributions so far, the newest last, with states where `hidden` names layers; `reach`: the
        probability of the tokens drawn from them.
        """

    @final
    def grow(self, growth: Growth) -> Looks:
        node, reach, traits = ROOT, 1.0, list[Traits]()
        for _ in range(min(growth.depth, growth.budget)):
            look = growth.drawn([node], 1, traits=self.traits, hidden=self.hidden)
            yield look
            if (child := look.child(0)) is None:
                return
            node, reach = growth.plant(node, child), reach * child.chance
            traits += [look.traits(0)] if self.traits else []
            if self.stops(traits, reach):
                return


@dataclass(frozen=True)
class Shape:
    """A tree without tokens: node i is child number ranks[i] of node parents[i] < i; -1 is the root."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @cached_property
    def levels(self) -> list[list[tuple[int, list[int]]]]:
        """Per level, the nodes that have children there, with these in the order of their ranks."""
        found: list[dict[int, list[int]]] = []
        depths: list[int] = []
        for node, parent in enumerate(self.parents):
            depths.append(depths[parent] + 1 if parent != ROOT else 0)
            if depths[node] == len(found):
                found.append({})
            found[depths[node]].setdefault(parent, []).append(node)
        rank = self.ranks.__getitem__
        return [[(parent, sorted(nodes, key=rank)) for parent, nodes in level.items()] for level in found]


class PlannedTree(Tree):
    """Lifts a shape that is known before anything is looked at."""

    @abstractmethod
    def shape(self, budget: int, depth: int) -> Shape:
        """At most `budget` nodes on at most `depth` levels. Where tokens are drawn, with every elder of a node."""

    @abstractmethod
    def look(self, growth: Growth, nodes: Sequence[int], count: int) -> Look:
        """How the children come about."""

    @final
    def grow(self, growth: Growth) -> Looks:
        """A token that an elder sibling has already, as draws with replacement may, gets no children of its own."""
        shape, planted = self.shape(growth.budget, growth.depth), {ROOT: ROOT}
        for level in shape.levels:
            rows = [(planted[parent], nodes) for parent, nodes in level if parent in planted]
            if not rows:
                return
            most = 1 + max(shape.ranks[nodes[-1]] for _, nodes in rows)
            look = self.look(growth, [parent for parent, _ in rows], most)
            yield look
            for row, (parent, nodes) in enumerate(rows):
                seen = set[int]()
                for node in nodes:
                    if (child := look.child(row, shape.ranks[node])) is None:
                        break
                    at = growth.plant(parent, child)
                    if child.token not in seen:
                        planted[node] = at
                    seen.add(child.token)


@lru_cache(maxsize=1024)
def branching(widths: tuple[int, ...], budget: int, depth: int) -> Shape:
    """As many children per node and level as `widths` says, then one each; where the budget ends, eldest first."""
    parents, ranks, level = list[int](), list[int](), [ROOT]
    for width in (*widths, *repeat(1, depth))[:depth]:
        fresh = [(parent, rank) for rank in range(width) for parent in level][: budget - len(parents)]
        level = list(range(len(parents), len(parents) + len(fresh)))
        parents += [parent for parent, _ in fresh]
        ranks += [rank for _, rank in fresh]
    return Shape(tuple(parents), tuple(ranks))


class LevelledTree(PlannedTree):
    """Lifts a constant number of children per level; a member says how these are drawn."""

    @dataclass(frozen=True)
    class Options:
        """`widths`: children of every node, level by level; one each on levels below these."""

        widths: tuple[int, ...] = (2, 2, 1)

        def __post_init__(self) -> None:
            if not self.widths or min(self.widths) < 1:
                raise ConfigError(f"a tree's widths are {list(self.widths)}; give 1 or more children per level.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.levels = options, len(options.widths)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options((2, 1))

    @final
    def shape(self, budget: int, depth: int) -> Shape:
        return branching(self.options.widths, budget, depth)


def measured(file: str, tree: str, read: Callable[[Any], Found]) -> Found:
    """What `forerun bench trees --save` wrote down for a tree, as `read` makes it of that; ConfigError if it cannot."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
        return read(found[tree] if isinstance(found, dict) else found)
    except (OSError, ValueError, TypeError, LookupError) as problem:
        nothing = f"tree {tree!r} finds nothing for itself in {file!r} ({problem!r})"
        raise ConfigError(f"{nothing}; make the file with forerun bench trees --save.") from problem


def numbers(count: int) -> Callable[[Any], tuple[float, ...]]:
    """Reads a list of so many numbers; any number of them for 0."""

    def read(found: Any) -> tuple[float, ...]:  # noqa: ANN401 - JSON
        given = tuple(float(number) for number in found)
        if not given or (count and len(given) != count):
            raise ValueError(f"{len(given)} numbers, not {count or 'one or more'}")
        return given

    return read
