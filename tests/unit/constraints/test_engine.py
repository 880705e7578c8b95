"""Constrained requests in the engine: ends within drafts, company, memory, and the ways to get the masks wrong."""

import re
from dataclasses import replace

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.guide import Guide
from forerun.models.toy import ToyModel
from forerun.sampling import path_to
from forerun.testing import Ask, BushyDrafter, LawError, Toy, laws
from forerun.testing.checks import siblings
from forerun.types import Constraint, Dist, Draft, Sampling
from forerun.verifiers import VERIFIERS

V, EOS = 6, 5
MODEL = ToyModel(V, 3, eos=(EOS,))
TREE = "draft-model:model=toy:9:6,depth=3,tree=(level:width=2)"
DRAFTERS = ["ngram:min_match=1", "draft-model:model=toy:9:6,depth=3", TREE, "grammar", BushyDrafter]
REGEX = "a(b|cd|ddd)*e"
BASE = Sampling(max_tokens=20, seed=0, constraint=Constraint("regex", REGEX))
SHORT = Constraint("choice", "ab,abcab,bbc,cab")


def asks(sampling=BASE, count=6):
    return [Ask((i % 5, 1, 2), replace(sampling, seed=i)) for i in range(count)]


def written(toy, sampling=BASE):
    rig = toy.build()
    texts = rig.write(asks(sampling))
    assert rig.engine.stats.draft_failures == 0
    return [(text.tokens, text.text, text.finish_reason, text.error) for text in texts]


@pytest.mark.parametrize("passes", ["auto", "padded"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS, ids=str)
def test_a_text_is_plain_decodings_by_seed(drafter, temperature, passes):
    sampling = replace(BASE, temperature=temperature)
    toy = Toy(drafter=drafter, verifier="match", model=MODEL).resized(passes=passes)
    found = written(toy, sampling)
    assert found == written(toy.plain(), sampling)
    assert any(reason == "stop" for *_, reason, _ in found), "no text came to its end; the test shows nothing"
    assert all(re.fullmatch(REGEX, text) for _, text, reason, _ in found if reason == "stop")


def test_a_text_that_may_go_on_ends_by_a_token_and_one_that_may_not_ends_at_once():
    open_ended = replace(BASE, constraint=Constraint("regex", "a(b|c)*"))
    for tokens, _, reason, _ in written(Toy(model=MODEL), open_ended):
        assert reason == "length" or tokens[-1] == EOS
    for tokens, text, reason, _ in written(Toy(model=MODEL), replace(BASE, constraint=SHORT)):
        assert reason == "stop"
        assert EOS not in tokens or text == "ab", "only 'ab' can go on"


def test_an_end_that_is_ignored_is_no_end():
    sampling = replace(BASE, constraint=Constraint("regex", "a(b|c)*"), ignore_eos=True)
    assert {reason for *_, reason, _ in written(Toy(model=MODEL, drafter=TREE), sampling)} == {"length"}
    complete = replace(BASE, constraint=SHORT, ignore_eos=True)
    assert {text for _, text, *_ in written(Toy(model=MODEL, drafter=TREE), complete)} <= {"abcab", "bbc", "cab"}


def test_an_end_of_the_requests_own_is_one_where_the_text_is_complete():
    sampling = replace(BASE, constraint=Constraint("regex", "a(bd)*"), stop_token_ids=(4,), ignore_eos=True)
    found = written(Toy(model=MODEL, drafter=TREE), sampling)
    assert any(tokens[-1] == 4 for tokens, *_ in found)
    assert all(re.fullmatch("a(bd)*", text) for tokens, text, *_ in found if tokens[-1] == 4)


def test_neighbours_memory_and_chunks_do_not_matter():
    toy = Toy(drafter=TREE, verifier="match", model=MODEL)
    sampling = replace(BASE, constraint=Constraint("regex", "a(b|cd|ddd){6,}e"))
    alone = [toy.build().write([ask])[0].tokens for ask in asks(sampling)]
    tight = replace(toy, cache="paged:block_size=4,blocks=12")
    rig = tight.build()
    assert [text.tokens for text in rig.write(asks(sampling))] == alone
    assert rig.engine.stats.preemptions > 0, "the pool is large enough for everybody; the test shows nothing"
    assert [text.tokens for text in toy.resized(max_step_tokens=6).build().write(asks(sampling))] == alone


def test_a_text_that_cannot_go_on_for_want_of_tokens_ends_alone_with_a_sentence():
    bans = replace(BASE, constraint=Constraint("choice", "ab"), bad_words=((1,),))
    rig = Toy(drafter=TREE, model=MODEL).build()
    found = rig.write([Ask((0, 1), bans), *asks(count=1)])
    assert "the constraint leave no token" in (found[0].error or "")
    assert found[1].finish_reason == "stop"


def test_a_drafter_of_forced_tokens_saves_steps():
    sampling = replace(BASE, constraint=Constraint("choice", "abcdabcdabcd,dcbadcbadcba"))
    rig = Toy(drafter="grammar", verifier="match", model=MODEL, planner="fixed:nodes=11").build()
    number = rig.add(Ask((0, 1), sampling))
    rig.finish()
    stats = rig.said[number][-1].stats
    assert stats.steps == 2, "one token is free, the rest follows from it"
    assert len(rig.text(number).tokens) == 12


REFUSED = [
    ("regexp", "a", "did you mean 'regex'"),
    ("regex", "a(", "does not compile"),
    ("regex", "(?=a)b", "does not compile"),
    ("regex", "a" * 2000, "regex:most=2000"),
    ("regex", "z+", "lets no text begin"),
    ("json_schema", "{", "does not compile"),
    ("json_schema", '{"type": "strange"}', "does not compile"),
    ("json_schema", '{"$ref": "http://localhost/x"}', "the schema's own"),
    ("json_object", "{}", "leave the text out"),
    ("lark", "start: missing", "does not compile"),
    ("gbnf", "root", "does not compile"),
    ("choice", "", "give texts"),
    ("choice", "[1]", "give texts"),
    ("deny-labels", "[", "give texts"),
    ("regex:mosst=3", "a", "did you mean 'most'"),
]


@pytest.mark.parametrize(("name", "text", "sentence"), REFUSED, ids=[f"{n}-{t[:12]}" for n, t, _ in REFUSED])
def test_what_cannot_be_is_refused_with_a_sentence_and_the_engine_goes_on(name, text, sentence):
    rig = Toy(model=MODEL).build()
    with pytest.raises(RequestError, match=re.escape(sentence)) as refusal:
        rig.add(Ask((0,), replace(BASE, constraint=Constraint(name, text))))
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)
    assert rig.write(asks(count=1))[0].error is None


def test_a_constraint_is_a_constraint():
    with pytest.raises(RequestError, match="give a Constraint"):
        Sampling(constraint="regex")


right = {name: getattr(Guide, name) for name in ("masks", "_back")}


def of_the_parent(guide, paths):
    return right["masks"](guide, [path[:-1] for path in paths])


def none_behind_the_draft(guide, paths):
    lengths = np.array([len(path) for path in paths])
    return right["masks"](guide, paths) | ((lengths == lengths.max()) & (lengths > 0))[:, None]


def kept_when_rejected(guide, walked, length):
    del walked[length:]


WRONG = {
    "the mask of the parent": ("masks", of_the_parent),
    "no mask on the bonus token": ("masks", none_behind_the_draft),
    "a matcher that rejected drafts move": ("_back", kept_when_rejected),
}


def test_the_right_masks_are_exact():
    for drafter in (BushyDrafter, "draft-model:model=toy:100,depth=2", "several:of=[grammar,ngram]"):
        laws.exact_is_true(Toy(drafter=drafter), laws.CONSTRAINED)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_masks_are_seen(name, monkeypatch):
    place, wrong = WRONG[name]
    monkeypatch.setattr(Guide, place, wrong)
    with pytest.raises(LawError):
        laws.exact_is_true(Toy(drafter=BushyDrafter), laws.CONSTRAINED)


def test_what_lies_below_a_committed_token_is_kept():
    rig = Toy(model=MODEL).build()
    rig.add(Ask((0,), BASE))
    guide = next(iter(rig.engine.requests.values())).guide
    guide.masks([(), (0,), (0, 1), (1,)])
    before = guide._masks[0, 1]
    guide.advance(0)
    assert guide._masks[(1,)] is before
    assert set(guide._masks) == {(), (1,)}
    with pytest.raises(ValueError, match="read-only"):
        guide.masks([(1,)])[:] = True


def test_forbidden_guesses_cost_no_rows(monkeypatch):
    sampling = replace(BASE, constraint=Constraint("choice", "abcdabcdabcd,dcbadcbadcba"))
    wide = replace(Toy(model=MODEL, verifier="match", drafter=BushyDrafter), planner="fixed:nodes=12")
    allowed = []

    def rows():
        rig = wide.build()
        decoder = rig.engine.members.decoder
        inner = decoder.plan

        def seen(seats):
            plans = inner(seats)
            for seat, one in zip(seats, plans, strict=True):
                for token, parent in zip(one.draft.tokens, one.draft.parents, strict=True):
                    allowed.append(seat.context.guide.masks([path_to(one.draft, parent)])[0, token])
            return plans

        decoder.plan = seen
        texts = [text.tokens for text in rig.write(asks(sampling))]
        return texts, rig.engine.stats.rows

    texts, cut = rows()
    assert allowed
    assert all(allowed)
    monkeypatch.setattr(Draft, "possible", lambda draft, _: draft)
    same, whole = rows()
    assert not all(allowed)
    assert texts == same
    assert cut < 0.8 * whole


def test_a_drawn_sibling_keeps_its_elders():
    q = Dist(np.array([0.5, 0.5]))
    chosen = Draft((0, 1, 0, 1), (-1, -1, 0, 1))
    assert chosen.possible([False, True, True, True]) == Draft((1, 1), (-1, 0))
    assert chosen.places_of(chosen.possible([False, True, True, True])) == [1, 3]
    mixed = Draft((0, 1, 0, 1), (-1, -1, 0, 1), (None, q, None, None))
    assert mixed.possible([False, True, True, False]) == mixed.only([0, 1, 2])
    assert chosen.possible([True] * 4) is chosen


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if VERIFIERS[name].facts.exact])
def test_cut_drafts_are_exact_under_verifiers_of_siblings(verifier):
    for drafter in (BushyDrafter, siblings(kind="mixed", width=3), siblings(kind="greedy")):
        laws.exact_is_true(Toy(drafter=drafter, verifier=verifier), laws.CONSTRAINED)
