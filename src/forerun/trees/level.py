"""The likeliest continuations of every level by cumulative probability, level by level; chosen, not drawn.

The first half of EAGLE-2's drafts (2406.16858), whose second half picks among all levels: `eagle2`.
Does not: draw; go on below a path that is less likely than `threshold`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth
from forerun.look import Look
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup


class LevelTree(Tree):
    """`width` nodes per level."""

    facts = Facts(paper="2406.16858", needs=frozenset({Need.BRANCHING}))
    levels = 3

    @dataclass(frozen=True)
    class Options:
        """`threshold`: the least probability that a path has."""

        width: int = 2
        threshold: float = 0.0

        def __post_init__(self) -> None:
            if self.width < 1:
                raise ConfigError(f"tree 'level': width is {self.width}; give 1 or more nodes per level.")
            if not 0 <= self.threshold <= 1:
                raise ConfigError(f"tree 'level': threshold is {self.threshold}; give a probability from 0 to 1.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def grow(self, growth: Growth) -> Iterator[Look]:
        level, reach = [ROOT], np.ones(1)
        for _ in range(growth.depth):
            width = min(self.options.width, growth.budget - len(growth))
            if not level or width < 1:
                return
            look = growth.likeliest(level, width)
            yield look
            paths = reach[:, None] * look.chances
            best = np.argsort(-paths, axis=None, kind="stable")[:width]
            rows, columns = np.unravel_index(np.sort(best), paths.shape)  # siblings in order
            likely = (paths[rows, columns] > 0) & (paths[rows, columns] >= self.options.threshold)
            rows, columns = rows[likely], columns[likely]
            level = [
                growth.plant(level[row], look.chosen(row, column)) for row, column in zip(rows, columns, strict=True)
            ]
            reach = paths[rows, columns]
