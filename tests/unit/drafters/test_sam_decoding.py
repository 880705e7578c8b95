"""SAM-Decoding: the longer match is continued, and a short one is left to somebody else."""

from dataclasses import replace

import numpy as np
import pytest

from forerun.build import setup_for
from forerun.config import Config
from forerun.drafters.sam_decoding import SamDecodingDrafter
from forerun.errors import ConfigError
from forerun.kernels.suffixes import END, build
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.stores import tokenfile
from forerun.stores.corpus import KIND
from forerun.types import Context, Sampling

SETUP = replace(setup_for(Config(), ToyModel(3, 0)), vocab=50)


@pytest.fixture
def corpus(tmp_path):
    """Counts upwards, in two documents."""
    text = np.array([*range(10, 30), END, *range(30, 40), END], np.int32)
    facts = {"tokenizer": tokenfile.mark_of(SETUP.open_spelling(""))}
    tokenfile.write(tmp_path / "corpus", KIND, facts, [text, build(text)], "")
    return str(tmp_path / "corpus")


def asked(drafter, tokens, scope=""):
    context = Context(0, list(tokens), len(tokens), Sampling(), CounterRng(0), scope=scope)
    return replace(context, state=drafter.start(context))


def test_the_latest_occurrence_is_copied_to_the_budget():
    drafter = SamDecodingDrafter(SamDecodingDrafter.Options(), SETUP)
    context = asked(drafter, [1, 2, 3, 4, 1, 2, 7, 8, 1, 2])
    assert drafter.propose([context], [2])[0].tokens == (7, 8)
    context.tokens.extend([3])
    assert drafter.propose([context], [3])[0].tokens == (4, 1, 2)


def test_a_text_that_repeats_itself_goes_on_repeating():
    drafter = SamDecodingDrafter(SamDecodingDrafter.Options(width=7), SETUP)
    assert drafter.propose([asked(drafter, [5, 6] * 4)], [99])[0].tokens == (5, 6, 5, 6, 5, 6, 5)


def test_the_corpus_is_preferred_where_it_matches_by_more(corpus):
    text = [12, 13, 1, 9, 10, 11, 12, 13]
    for bias, tokens in ((1, (14, 15)), (2, (1, 9))):
        drafter = SamDecodingDrafter(SamDecodingDrafter.Options(corpus=corpus, bias=bias, width=2), SETUP)
        assert drafter.propose([asked(drafter, text)], [8])[0].tokens == tokens


def write(drafter, prompt, output, scope=""):
    """A whole request."""
    context = asked(drafter, prompt, scope)
    context.tokens.extend(output)
    drafter.stop(context)


def test_an_earlier_output_of_the_scope_is_continued():
    drafter = SamDecodingDrafter(SamDecodingDrafter.Options(width=3), SETUP)
    write(drafter, [1, 2, 3], range(10, 30), "a")
    assert drafter.propose([asked(drafter, [9, 1, 2, 3], "a")], [8])[0].tokens == (10, 11, 12)
    for scope in ("", "b"):
        assert len(drafter.propose([asked(drafter, [9, 1, 2, 3], scope)], [8])[0]) == 0


def test_the_own_text_is_preferred_to_earlier_outputs_unless_these_match_by_more():
    drafter = SamDecodingDrafter(SamDecodingDrafter.Options(width=1), SETUP)
    write(drafter, [10, 11, 12, 13], [30])
    for text, tokens in (([12, 13, 9, 10, 11, 12, 13], (30,)), ([12, 13, 9, 8, 12, 13], (9,))):
        assert drafter.propose([asked(drafter, text)], [8])[0].tokens == tokens


def test_too_little_room_is_refused():
    with pytest.raises(ConfigError, match="drafter 'sam-decoding' has room=1; give at least"):
        SamDecodingDrafter.Options(room=1)


def test_documents_stand_alone(corpus):
    drafter = SamDecodingDrafter(SamDecodingDrafter.Options(corpus=corpus), SETUP)
    assert drafter.propose([asked(drafter, [27, 28, 29])], [8])[0].tokens == ()


def test_short_matches_are_left_to_the_other_drafter():
    options = SamDecodingDrafter.Options(shortest=3, of="ngram:min_match=1,width=1")
    drafter = SamDecodingDrafter(options, SETUP)
    contexts = [asked(drafter, text) for text in ([1, 2, 9, 1, 2], [1, 2, 3, 9, 1, 2, 3], [1, 2, 3])]
    drafts = drafter.propose(contexts, [8, 8, 8])
    assert [draft.source for draft in drafts] == ["ngram", "sam-decoding", ""]
    assert drafts[0].tokens == (9,)


def test_without_another_drafter_short_matches_are_nobodys():
    drafter = SamDecodingDrafter(SamDecodingDrafter.Options(shortest=3), SETUP)
    assert len(drafter.propose([asked(drafter, [1, 2, 9, 1, 2])], [8])[0]) == 0


def test_a_corpus_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="cannot read 'nowhere'"):
        SamDecodingDrafter(SamDecodingDrafter.Options(corpus="nowhere"), SETUP)
