"""What a constraint adds to a step: both engines write the script, and every step of both is timed."""

import math
from dataclasses import replace
from itertools import islice

from forerun.bench import covered, held, masks
from forerun.models.toy import ToyModel
from forerun.types import Sampling


def test_both_write_the_same_instance_and_are_timed():
    setup = masks.vocabulary("reference")
    rows = list(islice(covered.load(covered.OWN, 9, None), 2))
    found = held.measure(ToyModel(3, context_length=512), setup, iter(rows), {})
    assert set(found) == {"1", "8"}
    for case in found.values():
        assert case["steps"] > 10
        assert case["plain_ms"] > 0
        assert case["held_ms"] > 0
        assert math.isfinite(case["added"])


def test_the_model_says_its_script():
    model = held.Scripted(ToyModel(3, context_length=512), 1000)
    setup = masks.vocabulary("reference")
    engine = held._engine(model, replace(setup, vocab=1000), 2, {})
    model.script = [999, 7, 500, 3]
    numbers = [engine.add(held.PROMPT, Sampling(temperature=0.0, max_tokens=4)) for _ in range(2)]
    said = {number: [] for number in numbers}
    while engine.busy:
        for event in engine.step():
            said[event.request] += [e.token for e in event.emissions]
    assert list(said.values()) == [model.script] * 2
