"""Every random outcome of a run, with its weight: a proof where sampling gives an estimate.

An `ExhaustiveRng` replays a script of choices, takes the first option where the script ends, and notes the others as
scripts still to be run. The weights of all runs add up to one.
Does not: hold for anything but toy sizes; the number of runs grows with every draw that has more than one outcome.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from forerun.rng import Purpose, Rng
from forerun.types import Dist

Script = tuple[int, ...]
Table = dict[Hashable, float]


class ReuseError(AssertionError):
    """One random number was used for two decisions, which are then not independent."""


class ExhaustiveRng(Rng):
    """One run. `weight` is its probability, `forks` are the scripts of the runs that branch off it."""

    def __init__(self, script: Script = ()) -> None:
        self.script, self.taken, self.forks = script, list[int](), list[Script]()
        self.weight = 1.0
        self._used: set[tuple[int, int, int, int]] = set()

    def categorical(self, p: Dist, purpose: Purpose, depth: int, index: int = 0) -> int:
        mass = p.probs.astype(np.float64)
        chosen = self._choose(mass / mass.sum(), (purpose, depth, index))
        return int(p.ids[chosen]) if p.ids is not None else chosen

    def bernoulli(self, chance: float, purpose: Purpose, depth: int, index: int = 0) -> bool:
        yes = min(max(chance, 0.0), 1.0)
        return self._choose(np.array([1 - yes, yes]), (purpose, depth, index)) == 1

    def _choose(self, chances: np.ndarray, key: tuple[Purpose, int, int]) -> int:
        """The script's choice, or the first one possible; only a real choice uses up its number."""
        options = np.flatnonzero(chances).tolist()
        if len(options) == 1:
            return int(options[0])
        self._use(*key)
        at = len(self.taken)
        if at < len(self.script):
            chosen = self.script[at]
        else:
            chosen, *others = options
            self.forks += [(*self.taken, other) for other in others]
        self.taken.append(chosen)
        self.weight *= float(chances[chosen])
        return int(chosen)

    def _use(self, purpose: Purpose, depth: int, index: int) -> None:
        step = 0 if purpose is Purpose.TARGET else self.step  # as CounterRng keys its numbers
        key = (purpose, step, self.position + depth, index)
        if key in self._used:
            where = f"step {step}, position {self.position + depth}, index {index}"
            raise ReuseError(f"the number for {purpose.name} at {where} is drawn twice; give each draw its own index.")
        self._used.add(key)


Run = Callable[[list[ExhaustiveRng]], Sequence[Hashable]]


def outcomes(run: Run, together: int = 1) -> Table:
    """The exact distribution of what `run` returns for each of its rngs, up to `together` at a time."""
    table: Counter[Hashable] = Counter()
    todo: list[Script] = [()]
    while todo:
        scripts, todo = todo[-together:], todo[:-together]
        rngs = [ExhaustiveRng(script) for script in scripts]
        for rng, outcome in zip(rngs, run(rngs), strict=True):
            table[outcome] += rng.weight  # type: ignore[assignment] # a Counter adds floats as well
            todo += rng.forks
    return dict(table)


def distance(one: Mapping[Hashable, float], other: Mapping[Hashable, float]) -> float:
    """Total variation distance of two tables: 0 where they are the same law, 1 where they share nothing."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())
