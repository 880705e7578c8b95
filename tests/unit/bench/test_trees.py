"""What fixed trees and rules are made of: counted, drawn and fitted rightly; and one whole, small run."""

import json

import numpy as np
import pytest

from forerun.bench import acceptance, trees
from forerun.bench.acceptance import RANKS, Trace
from forerun.errors import ConfigError
from forerun.look import Traits
from forerun.trees import TREES

TRAITS = Traits(0.5, (0.7, 0.1, 0.1, 0.05))


def traced(p, q, ranks):
    rows = len(ranks)
    return Trace(np.tile(p, (rows, 1)), np.tile(q, (rows, 1)), np.array(ranks), [TRAITS] * rows)


def test_ranks_are_counted_below_accepted_tokens_only():
    table = acceptance.by_rank([traced([1.0], [1.0], [0, 0, RANKS, 0, 1])])
    assert table[0][:2] == [0.6, 0.2]
    assert table[1][:2] == [0.3333, 0.3333]  # after 0, 0 and 0; not after the one that no tree has
    assert table[2][:2] == [0.0, 0.0]
    assert acceptance.by_rank([])[0] == [0.0] * RANKS


def test_draws_are_accepted_as_rejection_sampling_would():
    same = acceptance.by_draw([traced([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0] * 50)])[0]
    assert same[0] == 1
    assert sum(same) == 1
    p, q = np.array([0.1, 0.6, 0.3]), np.array([0.6, 0.3, 0.1])
    apart, again = (acceptance.by_draw([traced(p, q, [0] * 2000)], again=again)[0] for again in (False, True))
    assert apart[0] == again[0] == pytest.approx(np.minimum(p, q).sum(), abs=0.01)
    assert sum(apart) == pytest.approx(1, abs=1e-3)  # of three draws one is what the target wants
    assert again[1] == pytest.approx((1 - again[0]) * (0.3 + 0.1), abs=0.02)  # of what is left of p, q draws as much
    assert len(acceptance.siblings([traced(p, q, [0] * 10)])) == 3


def test_acceptance_is_counted_by_q():
    p, q = np.array([0.9, 0.05, 0.05]), np.array([0.5, 0.495, 0.005])
    found = acceptance.calibration([traced(p, q, [0] * 1000)])
    assert found["accepted"][0] == 1  # 0.05 / 0.005, once in 200 draws
    assert found["accepted"][3] == pytest.approx((1 + 0.05 / 0.495) / 2, abs=0.05)
    assert found["accepted"][1] is None
    assert found["mean"] == pytest.approx(0.5 + 0.05 + 0.005)
    assert found["squared_error"]["largest"] == pytest.approx(0.055**2)


def test_a_fit_finds_the_weights_again():
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(20000), rng.normal(size=(20000, 2))])
    chance = 1 / (1 + np.exp(-features @ [0.5, -1.0, 2.0]))
    assert acceptance.fit(features, chance) == pytest.approx([0.5, -1.0, 2.0], abs=0.01)
    assert acceptance.fit(features, (rng.random(20000) < chance) * 1.0) == pytest.approx([0.5, -1.0, 2.0], abs=0.1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_tree_runs_and_what_was_measured_is_saved(temperature, tmp_path):
    file = tmp_path / "trees.json"
    order = trees.Order(["story"], 1, nodes=(4,), depth=2, trees=("level:width=3",), save=file)
    report = trees.run(order, {}, {"max_tokens": 12, "temperature": temperature})
    cases = {case["tree"]: case for case in report["cases"]}
    assert set(cases) == {*TREES, "level:width=3"}
    assert set(json.loads(file.read_text())) == {"static", "sequoia", "specdec-pp", "disco"}
    for case in cases.values():
        spread = case["tokens_per_step"]
        assert 1 <= spread["low"] <= spread["value"] <= spread["high"] <= 3
        assert 0 <= case["nodes_per_step"] <= 4
        assert case["worth"] <= spread["value"]
    by_cost = cases.pop("sequoia")  # which may find that nothing pays on a busy machine
    last = 0.25  # nodes, over some five steps: the last draft of a text is as short as what is left of it
    assert by_cost["nodes_per_step"] <= cases["static"]["nodes_per_step"] + last
    assert all(case["nodes_per_step"] > 0 and case["passes_per_step"] > 0 for case in cases.values())
    assert cases["static"]["lead"]["value"] == 0
    trees.show(report)


def test_prompts_to_fit_on_are_needed():
    with pytest.raises(ConfigError, match="lower --prompts"):
        trees.run(trees.Order(["code"], 99), {}, {"max_tokens": 8})
    with pytest.raises(ConfigError, match="did you mean 'chain'"):
        trees.run(trees.Order(trees=["chian"]), {}, {})
