"""Who drafts, along texts: time is that of the table, trials and passes included, and figures come again."""

import json

import pytest

from forerun.bench import choices
from forerun.bench.replay import ALL, Record
from forerun.bench.report import as_json
from forerun.errors import ConfigError

BANDIT = "bandit:of=[ngram,(draft-model:depth=2)],prices=[0.003,0.1]"


def report_of(*drafters, **changes):
    own = {"categories": ["story", "code"], "prompts": 3, "repeats": 1, **changes}
    return choices.run(choices.Order(drafters, **own), {"threads": 1}, {"max_tokens": 16})


def test_the_figures_come_again():
    first, again = (report_of("none", "ngram", "draft-model:depth=2", BANDIT) for _ in range(2))
    assert first["cases"] == again["cases"]
    cases = {(case["category"], case["drafter"]): case for case in first["cases"]}
    assert {category for category, _ in cases} == {"story", "code", choices.COPY, ALL}
    for category in ("story", ALL):
        assert cases[category, "none"]["tokens_per_step"] == 1
        assert cases[category, "none"]["over_plain"]["value"] == pytest.approx(1 / (1 + choices.LOOKUP), abs=1e-3)
        assert cases[category, "draft-model:depth=2"]["over_plain"]["value"] > 1
        assert max(case["over_best"]["value"] for (c, _), case in cases.items() if c == category) == 1
    assert cases[choices.COPY, "ngram"]["tokens_per_step"] > cases["story", "ngram"]["tokens_per_step"]
    assert json.loads(as_json(first))["benchmark"] == "choices"
    choices.show(first)


def test_dear_passes_make_drafting_slow():
    cheap, dear = (report_of("draft-model:depth=2", price=price)["cases"][-1] for price in (0.0, 2.0))
    assert cheap["tokens_per_step"] == dear["tokens_per_step"]
    assert cheap["over_plain"]["value"] > 1 > dear["over_plain"]["value"]


def test_copies_are_behind_what_they_copy():
    texts = [Record("story", (i,), tuple(range(10 * i, 10 * i + 30))) for i in range(4)]
    copy, last = choices.copies(texts + texts[:2])
    assert copy.prompt == texts[0].prompt + texts[0].output
    changed = [at for at, (a, b) in enumerate(zip(copy.output, texts[0].output, strict=True)) if a != b]
    assert changed == [0, 12, 24]
    assert last.category == choices.COPY


def test_what_looks_at_logits_is_refused():
    with pytest.raises(ConfigError, match="looks at the target's logits"):
        report_of("token-recycling")
