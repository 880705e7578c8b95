"""What a constraint adds to a step: both engines write the script, and every step of both is timed."""

import math
from dataclasses import replace
from itertools import islice

import pytest

from forerun.bench import covered, held, masks
from forerun.models.toy import ToyModel
from forerun.types import Sampling


def test_both_write_the_same_instance_and_are_timed():
    setup = masks.vocabulary("reference")
    rows = list(islice(covered.load(covered.OWN, 9, None), 2))
    found = held.measure(ToyModel(3, context_length=512), setup, iter(rows), {})
    assert set(found) == {"1", "8"}
    assert all(set(ways) == set(held.WAYS) for ways in found.values())
    for case in (case for ways in found.values() for case in ways.values()):
        assert case["steps"] > 10
        assert case["plain_ms"] > 0
        assert case["held_ms"] > 0
        assert math.isfinite(case["added"])


@pytest.mark.parametrize("lure", [None, 5])
def test_the_model_says_its_script_or_what_lures(lure):
    model = held.Scripted(ToyModel(3, context_length=512), 1000)
    setup = masks.vocabulary("reference")
    engine = held._engine(model, replace(setup, vocab=1000), 2, {})
    model.script, model.lure = [999, 7, 500, 3], lure
    numbers = [engine.add(held.PROMPT, Sampling(temperature=0.0, max_tokens=4)) for _ in range(2)]
    said = {number: [] for number in numbers}
    while engine.busy:
        for event in engine.step():
            said[event.request] += [e.token for e in event.emissions]
    assert list(said.values()) == [model.script if lure is None else [lure] * 4] * 2
