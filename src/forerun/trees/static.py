"""One shape for every draft, the best that measured acceptance gives (Medusa, 2401.10774, section 2.3.1).

A node is the r-th likeliest token at depth d, and is worth the product of what was measured of such tokens down to it:
how often the target's token is the one of that rank. The shape takes the worthiest nodes, greedily. Chosen, not drawn.
`forerun bench trees --save FILE` measures the acceptance of a model and its drafter.
Does not: look at the text; every draft has this shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth
from forerun.look import Look
from forerun.trees.contract import PlannedTree, Shape, measured, numbers
from forerun.types import Facts, Need, Setup

Ranks = tuple[int, ...]
Acceptance = tuple[tuple[float, ...], ...]  # by depth and rank; the last depth stands for all below it

# The bundled pair's first depth, greedy: `forerun bench trees --prompts 6 --save FILE`; the others differ little.
BUNDLED: Acceptance = ((0.602, 0.1576, 0.0539, 0.0283, 0.0249, 0.0176, 0.0136, 0.0136),)


class StaticTree(PlannedTree):
    """The same ranks at every step."""

    facts = Facts(paper="2401.10774", needs=frozenset({Need.BRANCHING}), evidence="docs/results/README.md#trees-greedy")

    @dataclass(frozen=True)
    class Options:
        """`file`: measured acceptance, or paths of ranks as [[0], [0, 1]]; "": that of the bundled pair.

        `nodes`: at most, 0: any.
        """

        file: str = ""
        nodes: int = 0

        def __post_init__(self) -> None:
            if self.nodes < 0:
                raise ConfigError(f"tree 'static': nodes is {self.nodes}; give 0 or more.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.paths, self.acceptance = measured(options.file, "static", _read) if options.file else ((), BUNDLED)

    def shape(self, budget: int, depth: int) -> Shape:
        nodes = min(budget, self.options.nodes or budget)
        if self.paths:
            return shape_of(tuple(path for path in self.paths if len(path) <= depth)[:nodes])
        return shape_of(best_paths(self.acceptance, nodes, depth))

    def look(self, growth: Growth, nodes: Sequence[int], count: int) -> Look:
        return growth.likeliest(nodes, count)


@lru_cache(maxsize=1024)
def best_paths(acceptance: Acceptance, nodes: int, depth: int) -> tuple[Ranks, ...]:
    """The `nodes` worthiest paths of at most `depth` ranks, shorter ones first: by greedy expansion."""
    places: list[tuple[float, int, Ranks]] = [(-1.0, 0, ())]
    found: list[Ranks] = []
    while places and len(found) <= nodes:
        minus, length, path = heappop(places)
        found.append(path)
        if length < depth:
            chances = acceptance[min(length, len(acceptance) - 1)]
            for rank, chance in enumerate(chances):
                heappush(places, (minus * chance, length + 1, (*path, rank)))
    return tuple(sorted(found[1:], key=lambda path: (len(path), path)))


@lru_cache(maxsize=1024)
def shape_of(paths: tuple[Ranks, ...]) -> Shape:
    """The shape of paths that begin with shorter ones."""
    at = {(): ROOT, **{path: node for node, path in enumerate(paths)}}
    return Shape(tuple(at[path[:-1]] for path in paths), tuple(path[-1] for path in paths))


def _read(found: Any) -> tuple[tuple[Ranks, ...], Acceptance]:  # noqa: ANN401 - JSON
    """Paths of whole numbers, or acceptance in fractions."""
    rows = tuple(tuple(row) for row in found)
    if all(isinstance(rank, int) for row in rows for rank in row):
        return _paths(rows), ()
    return (), tuple(numbers(0)(row) for row in rows)


def _paths(found: tuple[Ranks, ...]) -> tuple[Ranks, ...]:
    """Shorter ones first; ConfigError where one hangs in the air."""
    paths = sorted(set(found), key=lambda path: (len(path), path))
    known = {(), *paths}
    loose = [path for path in paths if path[:-1] not in known or min(path, default=-1) < 0]
    if loose or not paths:
        shown = list(loose[0]) if loose else []
        raise ConfigError(f"tree 'static': path {shown} hangs under none; list every path that it begins with.")
    return tuple(paths)
