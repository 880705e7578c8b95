"""The rng that visits every outcome: weights add up, a number decides once, and the reference is told apart."""

import numpy as np
import pytest

from forerun.models.toy import ToyModel
from forerun.rng import Purpose
from forerun.testing import Reference, ReuseError, distance, outcomes
from forerun.types import Dist, Sampling

HALF = Dist(np.array([0.5, 0.25, 0.25, 0.0]))


def test_every_outcome_is_visited_with_its_weight():
    def run(rngs):
        return [(rng.categorical(HALF, Purpose.TARGET, 0), rng.bernoulli(0.125, Purpose.ACCEPT, 0)) for rng in rngs]

    table = outcomes(run)
    assert table == {(t, yes): HALF.probs[t] * (0.125 if yes else 0.875) for t in range(3) for yes in (True, False)}
    assert outcomes(run, together=4) == table
    assert distance(table, table) == 0


def test_what_is_certain_uses_no_number():
    def run(rngs):
        return [
            [rng.bernoulli(chance, Purpose.ACCEPT, 0) for chance in (0.0, 1.0, 7.0)].count(True)
            + rng.categorical(Dist.point(5), Purpose.ACCEPT, 0)
            for rng in rngs
        ]

    assert outcomes(run) == {7: 1.0}


@pytest.mark.parametrize(("second", "reused"), [((0, 1), True), ((1, 0), True), ((0, 0), False), ((1, 1), False)])
def test_a_number_decides_once_in_a_step(second, reused):
    """Keys are absolute: depth 1 of one step is depth 0 after one more token. Only the target's ignore the step."""
    step, depth = second

    def run(rngs):
        rng = rngs[0]
        rng.begin(0, 10)
        rng.categorical(HALF, Purpose.TARGET, 1)
        rng.begin(step, 10 if step == 0 else 11)
        return [rng.categorical(HALF, Purpose.TARGET, depth)]

    if reused:
        with pytest.raises(ReuseError, match="TARGET"):
            outcomes(run)
    else:
        assert len(outcomes(run)) == 3


def test_other_draws_may_be_repeated_in_a_later_step():
    def run(rngs):
        for step in (0, 1):
            rngs[0].begin(step, 10)
            rngs[0].bernoulli(0.5, Purpose.ACCEPT, 0, 3)
        return [None]

    assert outcomes(run) == {None: 1.0}


def test_the_reference_is_the_table_of_the_toy():
    model = ToyModel(3, 5)
    law = Reference(model).law((0, 1), Sampling(), 2)
    for (a, b), chance in law.items():
        assert chance == pytest.approx(model.probs((0, 1))[a] * model.probs((1, a))[b], abs=1e-12)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)


def test_the_reference_stops_at_the_end_of_a_text():
    model = ToyModel(3, 5, eos=(2,))
    law = Reference(model).law((0, 1), Sampling(), 3)
    assert {len(tokens) for tokens in law if tokens[-1] == 2} == {1, 2, 3}
    assert all(2 not in tokens[:-1] for tokens in law)
