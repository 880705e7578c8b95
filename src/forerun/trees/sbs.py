"""What a stochastic beam search finds: `width` sequences per level, drawn without replacement (RSD-S, 2402.14160).

With Gumbel noise (1903.06059) every sequence of a level arrives at a time that is exponential with its probability as
rate, and a node arrives with the first sequence below it; the `width` first arrivals of a level are its nodes. Only
their order matters, and given the order of the level above it can be drawn without any time: the next arrival is below
a node that has arrived, each at the rate that its children so far have left, or it is the next node of the level above,
which brings its first child. The token of an arrival is drawn from what its elders left, whatever comes of it, so
siblings report their q and stand in the order of arrival.
Does not: draw for a greedy request, which gets a beam search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.errors import ConfigError
from forerun.growth import ROOT, Growth, Looks, beam
from forerun.look import Child, Look
from forerun.trees.contract import Tree
from forerun.types import Facts, Need, Setup


@dataclass
class _Race:
    """Who comes next on one level."""

    look: Look
    rates: Sequence[float]  # of the nodes above, in the order of their arrival
    left: list[float] = field(default_factory=list)  # of these, below those that have arrived
    taken: list[int] = field(default_factory=list)  # children that have
    coming: float = 1.0  # the rate of all nodes above that have not

    def weights(self) -> list[float]:
        """Of one more child of each node above that has arrived, and of the next of these."""
        return [*self.left, self.coming if len(self.left) < len(self.rates) else 0.0]

    def arrive(self, row: int) -> Child | None:
        """The next child below a node above, which may itself be new; None where it has no child left."""
        if row == len(self.left):
            self.left.append(self.rates[row])
            self.taken.append(0)
            self.coming = max(self.coming - self.rates[row], 0.0)
        child = self.look.child(row, self.taken[row])
        self.taken[row] += 1
        left = self.left[row] - self.rates[row] * child.chance if child is not None else 0.0
        self.left[row] = left if left > _NOTHING * self.rates[row] else 0.0
        return child


_NOTHING = 1e-12  # what rounding may leave of a rate


class SbsTree(Tree):
    """Stochastic beam search."""

    facts = Facts(
        keys=("rsd-swor",),
        draws=True,
        paper="2402.14160",
        needs=frozenset({Need.BRANCHING}),
        evidence="docs/results/README.md#trees-drawn",
    )
    levels = 3

    @dataclass(frozen=True)
    class Options:
        """`width`: nodes per level."""

        width: int = 3

        def __post_init__(self) -> None:
            if self.width < 1:
                raise ConfigError(f"tree 'sbs': width is {self.width}; give 1 or more nodes per level.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(2)  # fewer than a toy has tokens

    def grow(self, growth: Growth) -> Looks:
        if growth.greedy:
            yield from beam(growth, self.options.width)
            return
        level, rates = [ROOT], [1.0]
        for depth in range(growth.depth):
            width = min(self.options.width, growth.budget - len(growth))
            if not level or width < 1:
                return
            look = growth.drawn(level, width)
            yield look
            level, rates = self._level(growth, _Race(look, rates), level, depth, width)

    def _level(
        self, growth: Growth, race: _Race, above: Sequence[int], depth: int, width: int
    ) -> tuple[list[int], list[float]]:
        """The first `width` arrivals, and their rates. The first node above comes first."""
        nodes, rates, row = list[int](), list[float](), 0
        while True:
            child = race.arrive(row)
            if child is not None:
                nodes.append(growth.plant(above[row], child))
                rates.append(race.rates[row] * child.chance)
            weights = race.weights()
            if len(nodes) == width or not sum(weights) > 0:
                return nodes, rates
            row = growth.choose(weights, depth, sum(race.taken))
