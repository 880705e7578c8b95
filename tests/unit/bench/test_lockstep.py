"""Engines in turn: all have work all the time, and what is counted is what was written."""

import json
from itertools import groupby
from types import SimpleNamespace

import pytest

from forerun.bench import lockstep
from forerun.bench.report import as_json
from forerun.bench.workloads import Item
from forerun.errors import ConfigError
from forerun.types import Sampling


def report_of(**changes):
    own = {"categories": ["story"], "prompts": 3, "requests": (1, 2), "steps": 12, **changes}
    return lockstep.run(lockstep.Order(**own), {"threads": 1, "profiles": "off"}, {"max_tokens": 4})


def test_every_planner_is_beside_plain_decoding():
    found = report_of(settings=("fixed:nodes=2", "auto"))
    cases = {(case["requests"], case["planner"]): case for case in found["cases"]}
    assert set(cases) == {(n, name) for n in (1, 2) for name in ("fixed:nodes=2", "auto", lockstep.AGAIN)}
    for count in (1, 2):
        assert cases[count, lockstep.AGAIN]["tokens_per_step"] == 1, "as many as are asked for run in every step"
        assert cases[count, "fixed:nodes=2"]["tokens_per_step"] > 1
    assert all(case["ms_per_step"] > 0 and case["over_plain"]["value"] > 0 for case in cases.values())
    assert json.loads(as_json(found))["benchmark"] == "lockstep"
    lockstep.show(found)


def test_engines_take_turns_of_some_steps_since_what_grows_behind_one_may_hold_up_the_next(monkeypatch):
    turns, real = [], lockstep.Entrant.step

    def step(entrant):
        turns.append(id(entrant))
        real(entrant)

    monkeypatch.setattr(lockstep.Entrant, "step", step)
    report_of(requests=(1,), steps=2 * lockstep.TURN + 3)
    lengths = [len(list(some)) for _, some in groupby(turns)]
    assert lengths == [lockstep.TURN] * 6 + [3] * 3
    assert len(set(turns)) == 3
    assert len({turns[0], turns[3 * lockstep.TURN], turns[6 * lockstep.TURN]}) == 3, "who begins changes"


def test_who_ends_is_followed_by_another_length():
    asked = []

    class Engine:
        requests = ()

        def add(self, tokens, sampling):
            asked.append((tokens, sampling.max_tokens))

    items = [Item("a", number, (number,)) for number in (1, 2)]
    entrant = lockstep.Entrant(SimpleNamespace(engine=Engine()), items, Sampling(max_tokens=96), requests=1)
    for _ in range(200):
        entrant._ask()
    assert [tokens for tokens, _ in asked[:3]] == [(1,), (2,), (1,)]
    lengths = [length for _, length in asked]
    assert min(lengths) == 48
    assert max(lengths) == 143
    assert len(set(lengths[:20])) == 20


def test_a_planner_that_does_not_exist_is_refused_first():
    with pytest.raises(ConfigError, match="atuo"):
        report_of(settings=("atuo",))
