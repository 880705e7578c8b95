"""Monitors: what a function says is what may come, it is asked by name alone, and its failures are one request's."""

from dataclasses import replace

import numpy as np
import pytest

from forerun.build import assemble, guides_for, setup_for
from forerun.config import Config
from forerun.errors import RequestError
from forerun.llm import LLM
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.testing.toy import Rig
from forerun.types import Constraint, Sampling

WORDS = ("a", "b", "c", ".", "ab", "abc", "bc", ".a")
MEMBERS = ("ab", "abc", "cb")
MODEL = ToyModel(words=WORDS)


def members(text):
    """After a dot comes a member, and a dot or nothing behind it."""
    if "." not in text:
        return None
    begun = text.rpartition(".")[2]
    rest = [name[len(begun) :] for name in MEMBERS if name.startswith(begun) and name != begun]
    return [*rest, ".", ""] if begun in MEMBERS else rest


def broken(text):
    if text:
        raise LookupError("the index\nis gone")


MONITORS = {"members": members, "broken": broken, "nothing": lambda text: [] if text else None}
GUIDES = guides_for(replace(setup_for(Config(), MODEL), monitors=MONITORS))


def allowed(wish, text):
    guide = GUIDES(Constraint("monitors", wish), frozenset())
    for word in text:
        guide.advance(WORDS.index(word))
    return {WORDS[i] for i in np.flatnonzero(guide.masks([()])[0])}, guide


@pytest.mark.parametrize(
    ("text", "words", "ends"),
    [
        ("", set(WORDS), True),
        ("b.", {"a", "c", "ab", "abc"}, False),
        ("b.a", {"b", "bc"}, False),
        (["b", ".", "ab"], {"c", "."}, True),
        (["b", ".a", "b", "."], {"a", "c", "ab", "abc"}, False),
        ("b.c", {"b"}, False),
    ],
)
def test_a_token_writes_the_beginning_of_a_continuation(text, words, ends):
    found, guide = allowed("members", text)
    assert found == words
    assert guide._matcher.may_end() == ends


def test_a_table_is_a_monitor():
    table = '{"b.": ["ab", "cb"]}'
    assert allowed(table, "a")[0] == set(WORDS)
    assert allowed(table, "b.")[0] == {"a", "ab", "c"}
    assert allowed(table, "b.a")[0] == {"b"}
    assert allowed(table, "b.ab")[0] == set(WORDS)


@pytest.mark.parametrize(
    "text", ["{", '{"a": []}', '{"a": "b"}', '{"": ["a"]}', '{"a": [1]}', "os:system", "../members", ""]
)
def test_what_is_no_monitor_is_refused_and_nothing_is_imported(text):
    with pytest.raises(RequestError, match="constraint 'monitors'") as refusal:
        GUIDES(Constraint("monitors", text), frozenset())
    assert "\n" not in str(refusal.value)


def rig(**members):
    """A toy engine with these monitors."""
    toy = Toy(model=ToyModel(words=WORDS, seed=2), **members)
    setup = replace(setup_for(toy.config, toy.model), monitors=MONITORS)
    return Rig(assemble(toy.choices, toy.config, toy.model, setup, lambda tokens: "".join(WORDS[t] for t in tokens)))


@pytest.mark.parametrize("drafter", ["ngram:min_match=1", "draft-model:model=toy:9:8,depth=3,tree=(level:width=2)"])
def test_drafts_change_nothing(drafter):
    wish = Sampling(max_tokens=12, constraint=Constraint("monitors", "members"))
    asks = [Ask((0, 3), replace(wish, seed=seed)) for seed in range(8)]
    found = [text.tokens for text in rig(drafter=drafter, verifier="match").write(asks)]
    assert found == [text.tokens for text in rig().write(asks)]
    assert any("." in text.text for text in rig().write(asks))


def test_a_function_that_fails_ends_its_own_request_with_a_sentence():
    bad, empty, good = (
        Sampling(max_tokens=4, seed=1, constraint=Constraint("monitors", name))
        for name in ("broken", "nothing", "members")
    )
    found = rig(drafter="ngram:min_match=1").write([Ask((0, 1), bad), Ask((0, 1), empty), Ask((0, 1), good)])
    assert "monitor failed (LookupError" in (found[0].error or "")
    assert "\n" not in (found[0].error or "")
    assert "leave no token" in (found[1].error or "")
    assert found[2].error is None


def test_the_library_registers_them():
    llm = LLM(MODEL, monitors={"b": lambda _: ["b"]}, passes="auto")
    wish = Sampling(max_tokens=3, constraint=Constraint("monitors", "b"))
    for one in (llm, llm.plain()):
        assert one.generate([[0]], wish)[0].tokens == (1, 1, 1)
    with pytest.raises(RequestError, match=r"no monitor 'c'.*LLM\(monitors"):
        llm.generate([[0]], replace(wish, constraint=Constraint("monitors", "c")))
