"""What planners lose where drafting is of no use: a fixed length loses much, and the figures come again."""

import json

from forerun.bench import harm
from forerun.bench.report import as_json


def report_of(**changes):
    own = {"categories": ["story"], "prompts": 2, "repeats": 1, "batches": (2,), "prices": (0.3,), **changes}
    return harm.run(harm.Order(**own), {"threads": 1}, {"max_tokens": 12})


def test_drafts_that_are_always_wrong_are_paid_for():
    first, again = (report_of(settings=("fixed:nodes=0", "fixed:nodes=4", "auto")) for _ in range(2))
    assert first["cases"] == again["cases"]
    cases = {(case["work"], case["planner"]): case for case in first["cases"]}
    assert {work for work, _ in cases} == {"wrong", "random"}
    assert all(cases[work, "fixed:nodes=0"]["over_plain"]["value"] == 1 for work in ("wrong", "random"))
    assert cases["wrong", "fixed:nodes=4"]["accepted"] < 0.01
    assert cases["wrong", "fixed:nodes=4"]["over_plain"]["value"] < 0.5
    assert cases["wrong", "fixed:nodes=4"]["over_plain"]["value"] < cases["wrong", "auto"]["over_plain"]["value"]
    assert json.loads(as_json(first))["benchmark"] == "harm"
    harm.show(first)


def test_random_prompts_are_within_the_vocabulary():
    items = list(harm.random_prompts(3, 50))
    assert [item.number for item in items] == [1, 2, 3]
    assert all(0 <= token < 50 for item in items for token in item.tokens)
    assert items[0].tokens != items[1].tokens
