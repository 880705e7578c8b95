"""Planners in a race by a table of costs: a whole, small run, which comes again, and ratios of pairs."""

import json

import numpy as np
import pytest

from forerun.bench import planners
from forerun.bench.report import as_json
from forerun.errors import ConfigError
from forerun.planners import PLANNERS


def report_of(**changes):
    order = planners.Order(**{"categories": ["story", "code"], "prompts": 2, "repeats": 1, "batches": (2,), **changes})
    return planners.run(order, {"threads": 1}, {"max_tokens": 10})


def test_every_planner_runs_and_the_figures_come_again():
    first, again = (report_of(nodes=(2, 5), settings=("tetris:nodes=2",)) for _ in range(2))
    assert first["cases"] == again["cases"]
    cases = {case["planner"]: case for case in first["cases"]}
    assert set(cases) == {planners.PLAIN, "fixed:nodes=2", "fixed:nodes=5", *PLANNERS, "tetris:nodes=2"}
    plain = cases[planners.PLAIN]
    assert plain["tokens_per_step"] == plain["over_plain"]["value"] == 1
    assert plain["nodes_per_step"] == 0
    assert cases["fixed:nodes=5"]["tokens_per_step"] > cases["fixed:nodes=2"]["tokens_per_step"] > 1
    assert cases["tetris:nodes=2"]["nodes_per_step"] <= 2
    assert max(case["over_best"]["value"] for case in cases.values() if case["planner"].startswith("fixed:")) == 1
    assert all(set(case["categories"]) == {"story", "code"} for case in cases.values())
    assert json.loads(as_json(first))["cases"][0]["timed"] is None
    planners.show(first)


def test_time_is_that_of_the_table():
    report = report_of(nodes=(1,), only=True, batches=(1,), repeats=1)
    plain, one = report["cases"]
    price, costs = report["settings"]["price"], planners.COSTS
    step = costs.of(2) + price * costs.of(1)  # but at a text's last token, when nothing is drafted
    assert plain["rates"] == [pytest.approx(1 / costs.of(1))]
    assert one["tokens_per_step"] / step <= one["rates"][0] <= one["tokens_per_step"] / costs.of(1)


def test_the_clock_is_asked_at_a_bigger_models_cost():
    report = report_of(nodes=(2,), only=True, inflate="20M", repeats=1)
    plain, two = report["cases"]
    assert plain["timed"]["speedup"]["median"] == 1
    assert two["timed"]["tokens_per_second"]["median"] > 0
    assert "INFLATED" in report["notes"][0]
    planners.show(report)


def test_a_ratio_is_that_of_pairs():
    found = planners.ratio(np.array([2.0, 30.0]), np.array([1.0, 10.0]))
    assert (found["value"], found["low"], found["high"]) == (2.5, 2.0, 3.0)


def test_what_is_spelled_wrong_is_refused_first():
    with pytest.raises(ConfigError, match="did you mean 'tetris'"):
        planners.run(planners.Order(settings=["tetriss"]), {}, {})
