"""What is tried: each setting once, of names that exist."""

import pytest

from forerun.build import CHOSEN
from forerun.config import choose
from forerun.errors import ConfigError
from forerun.tune.settings import NODES, PLAIN, Setting, given, usual


@pytest.mark.parametrize("companion", [False, True])
@pytest.mark.parametrize("planner", [None, "auto"])
def test_the_usual_settings_exist_and_are_tried_once(companion, planner):
    found = usual(planner, companion=companion)
    names = {
        (choose(CHOSEN["drafter"], s.drafter).spelling, choose(CHOSEN["planner"], s.planner).spelling) for s in found
    }
    assert len(names) == len(found)
    assert any(s.drafter.startswith("draft-model") for s in found) == companion
    assert planner is None or {s.planner for s in found} == {planner}


def test_a_drafter_is_tried_with_every_budget():
    assert given(["ngram"], [2, 8], None) == [Setting("ngram", "fixed:nodes=2"), Setting("ngram", "fixed:nodes=8")]
    assert [s.planner for s in given(["ngram"], [], None)] == [f"fixed:nodes={count}" for count in NODES]


def test_two_spellings_of_one_setting_are_one():
    assert given(["ngram", "ngram:"], [4, 4], None) == [Setting("ngram", "fixed:nodes=4")]
    assert given(["ngram"], [4, 8], "free") == [Setting("ngram", "free")]


def test_plain_decoding_can_be_chosen():
    assert choose(CHOSEN["drafter"], PLAIN.drafter).name == "none"
    assert choose(CHOSEN["planner"], PLAIN.planner).options.nodes == 0


@pytest.mark.parametrize(
    ("drafters", "planner", "sentence"),
    [
        (["ngrm"], None, "no drafter 'ngrm'; did you mean 'ngram'"),
        (["ngram:widht=3"], None, "drafter 'ngram' has no option 'widht'"),
        (["ngram"], "fixd", "no planner 'fixd'; did you mean 'fixed'"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(drafters, planner, sentence):
    with pytest.raises(ConfigError, match=sentence):
        given(drafters, [4], planner)
