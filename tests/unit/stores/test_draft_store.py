"""--draft-store through the library's face."""

import gc

import pytest

from forerun.config import Config
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.stores.shelf import NAME
from forerun.types import Sampling

SAMPLING = Sampling(temperature=0, max_tokens=12)
PROMPT = [0, 1, 2, 0, 1, 1]


@pytest.mark.parametrize("drafter", ["suffix-decoding", "sam-decoding"])
def test_a_second_engine_drafts_what_the_first_one_wrote(drafter, tmp_path):
    steps, texts = [], []
    for _ in range(2):
        llm = LLM("toy:3", drafter=drafter, planner="fixed", draft_store=str(tmp_path))
        result = llm.generate([PROMPT], SAMPLING)[0]
        steps.append(result.stats.steps)
        texts.append(result.tokens)
        assert result.tokens == llm.plain().generate([PROMPT], SAMPLING)[0].tokens
        del llm
        gc.collect()
    assert texts[0] == texts[1]
    assert steps[1] < steps[0]
    assert (tmp_path / NAME).exists()


def test_a_store_that_nobody_uses_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="drafter 'ngram' keeps nothing; leave it out, or use drafter='suffix-dec"):
        LLM("toy:3", drafter="ngram", draft_store=str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_a_drafter_inside_another_may_use_it(tmp_path):
    llm = LLM("toy:3", drafter="several:of=[ngram,suffix-decoding]", draft_store=str(tmp_path))
    with pytest.raises(ConfigError, match="in use by another engine"):
        LLM("toy:3", drafter="suffix-decoding", draft_store=str(tmp_path))
    assert llm.config.draft_store == str(tmp_path)


def test_two_drafters_of_one_engine_cannot_both_have_it(tmp_path):
    with pytest.raises(ConfigError, match="is kept by another drafter of this engine; hold only one that learns, or"):
        LLM("toy:3", drafter="several:of=[sam-decoding,suffix-decoding]", draft_store=str(tmp_path))


def test_nothing_is_kept_unless_it_is_asked_for():
    assert Config.draft_store == ""
