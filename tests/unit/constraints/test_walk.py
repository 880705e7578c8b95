"""Automata over bytes, against a search in the text; and grammars, against what they say."""

import json
import re
import threading

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.build import guides_for, setup_for
from forerun.config import Config
from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.types import Constraint

WORDS = ("a", "b", "c", "ab", "bc", "abc", "é", "e")
SETUP = setup_for(Config(), ToyModel(words=WORDS))
GUIDES = guides_for(SETUP)
TEXTS = st.lists(st.integers(0, len(WORDS) - 1), max_size=8)
LABELS = st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)


def reads(wish, tokens):
    """How many of the tokens are allowed, one after the other, and whether the text may end behind them."""
    guide = GUIDES(wish, frozenset())
    for count, token in enumerate(tokens):
        if not guide.masks([()])[0, token]:
            return count, False
        guide.advance(token)
    return len(tokens), guide._matcher.may_end()


@given(LABELS, TEXTS)
def test_a_denied_label_is_never_written_and_nothing_else_is_denied(labels, tokens):
    try:
        count, _ = reads(Constraint("deny-labels", json.dumps(labels)), tokens)
    except RequestError:
        assert all(any(label in word for label in labels) for word in WORDS)
        return
    wanted = next(
        (i for i in range(len(tokens)) if any(label in "".join(WORDS[t] for t in tokens[: i + 1]) for label in labels)),
        len(tokens),
    )
    assert count == wanted


@given(LABELS, TEXTS)
def test_a_choice_is_one_of_its_words(words, tokens):
    try:
        count, complete = reads(Constraint("choice", json.dumps(words)), tokens)
    except RequestError:
        assert not any(word.startswith(piece) for piece in WORDS for word in words)
        return
    text = "".join(WORDS[token] for token in tokens[:count])
    assert any(word.startswith(text) for word in words)
    assert complete == (count == len(tokens) and text in words)
    if count < len(tokens):
        assert not any(word.startswith(text + WORDS[tokens[count]]) for word in words)


@given(TEXTS)
def test_a_regex_is_what_python_matches(tokens):
    count, complete = reads(Constraint("regex", "(ab|c)*(bc|é)+"), tokens)
    text = "".join(WORDS[token] for token in tokens)
    assert complete == bool(re.fullmatch("(ab|c)*(bc|é)+", text))
    assert not complete or count == len(tokens)


def test_a_special_token_is_no_text():
    guides = guides_for(setup_for(Config(), ToyModel(words=WORDS, eos=(7,))))
    guide = guides(Constraint("regex", "e|ee|a"), frozenset())
    assert not guide.masks([()])[0, 7], "the end of a text is not its letter"
    assert guide.masks([()])[0, 0]


def test_a_tokenizer_that_cannot_be_used_is_said(monkeypatch):
    def broken(_words):
        raise ValueError("no bytes\nand a trace")

    monkeypatch.setattr("forerun.grammars.LLTokenizer", broken)
    guides = guides_for(setup_for(Config(), ToyModel(words=WORDS)))
    with pytest.raises(RequestError, match=r"cannot be used for constraints \(no bytes\); leave the constraint out"):
        guides(Constraint("regex", "a"), frozenset())


def test_deeply_nested_rules_end_no_process():
    rules = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(3000))
    before = threading.stack_size()
    guide = GUIDES(Constraint("lark", f'{rules}\nr3000: "a"\nstart: r0'), frozenset())
    assert guide.masks([()]).any()
    assert threading.stack_size() == before


def test_what_becomes_too_complex_is_said():
    guide = GUIDES(Constraint("regex", "((a{1,100}){1,100}){1,100}"), frozenset())
    assert not guide.trouble
    for _ in range(60):
        assert not guide.advance(0), "an error is no end of the text"
    assert guide.trouble.startswith("the constraint is too complex here")
    assert not guide.masks([()]).any()


def test_an_error_in_a_drafted_branch_is_forgotten_with_it():
    guide = GUIDES(Constraint("regex", "b|((a{1,100}){1,100}){1,100}"), frozenset())
    before = guide.masks([()])
    guide.masks([(0,) * 60])
    guide._masks.clear()
    assert not guide.trouble
    assert np.array_equal(guide.masks([()]), before)


def test_nothing_follows_a_committed_token_that_is_forbidden():
    guide = GUIDES(Constraint("choice", "abc"), frozenset())
    guide.masks([(), (2,)])
    assert not guide.advance(2)
    assert not guide.masks([(), (0,)]).any()
    assert not guide.forced((), 3)
    assert "left its constraint" in guide.trouble


@pytest.mark.parametrize("text", ["ab", '["ab"]', ' ["ab", "c"]'])
def test_lists_are_written_with_commas_or_as_json(text):
    assert reads(Constraint("choice", text), [3]) == (1, True)


@pytest.mark.parametrize(
    ("grammar", "tokens"),
    [
        (r'root ::= "\u00e9" [\u0061-\u0062] "b"', [6, 0, 1]),
        (r'root ::= [\U000000E0-\U0010FFFF] "\x61"', [6, 0]),
        (r'root ::= "a\\" | [\\] "u00e9" | "ab"', [0, 1]),
    ],
)
def test_escapes_of_gbnf_are_characters(grammar, tokens):
    count, complete = reads(Constraint("gbnf", grammar), tokens)
    assert count == len(tokens)
    assert complete
    assert reads(Constraint("gbnf", grammar), [7])[0] == 0


def test_beside_a_reference_of_an_early_draft_nothing_counts():
    schema = {"$ref": "#/definitions/a", "maximum": 5, "definitions": {"a": {"type": "integer", "enum": [12, 3]}}}
    digits = guides_for(setup_for(Config(), ToyModel(words=("1", "2", "3"))))

    def first(schema):
        return digits(Constraint("json_schema", json.dumps(schema)), frozenset()).masks([()])[0].tolist()

    assert first(schema) == [False, False, True]
    assert first({**schema, "$schema": "http://json-schema.org/draft-07/schema#"}) == [True, False, True]
    assert first(True) == [True, True, True]


VALUES = [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": "x"}, {"a": 1, "b": "x"}, [], [1], 1, "x"]
VALUES += [{"not": {"not": 1}}, {"dependencies": 1}, {"dependencies": "x"}]
ORDER = {name: {} for name in "abc"}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ORDER, "dependencies": {"a": ["b"]}},
        {"properties": ORDER, "dependentRequired": {"a": ["b"], "c": ["a"]}},
        {"properties": ORDER, "dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}, "required": ["b"]}}},
        {"properties": ORDER, "dependencies": {"a": {"dependencies": {"b": False}}}},
        {"not": {"not": {"type": "integer"}}},
        {"allOf": [{"type": "object"}], "properties": ORDER, "not": {"not": {"required": ["a"]}}},
        {"enum": [{"not": {"not": 1}}, 1], "not": {"not": {}}},
        {"properties": {"dependencies": {"type": "integer"}, "not": {"not": {"not": {}}}}},
        {"$id": "http://a.example/b#", "items": {"$ref": "http://a.example/b"}, "type": "array"},
    ],
)
def test_what_has_no_word_is_said_in_others(schema):
    """A token per value: its mask says what another library says of it."""
    dialect = jsonschema.Draft7Validator if "dependencies" in schema else jsonschema.Draft202012Validator
    words = (*map(json.dumps, VALUES), "{", "[")  # llguidance wants a token for what must come
    guides = guides_for(setup_for(Config(), ToyModel(words=words)))
    mask = guides(Constraint("json_schema", json.dumps(schema)), frozenset()).masks([()])[0, : len(VALUES)]
    assert mask.tolist() == [dialect(schema).is_valid(value) for value in VALUES]
    assert len(set(mask.tolist())) == 2


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"not": {"not": {"type": "integer"}}}},
        {"allOf": 1, "not": {"not": {}}},
        {"dependencies": {"a": 1}},
    ],
)
def test_what_cannot_be_said_is_refused(schema):
    """A property may be called `not`; and what is no schema is refused, not broken by."""
    guides = guides_for(setup_for(Config(), ToyModel(3)))
    with pytest.raises(RequestError, match="does not compile"):
        guides(Constraint("json_schema", json.dumps(schema)), frozenset())


SAID = (*'{}[]",:1acntrue l', '{"', '":', "null", "true", ',"', '"]', '"}', "],", "}]", "]}")
OF_JSON = guides_for(setup_for(Config(), ToyModel(words=SAID)))
OPEN = {"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "null"}}, "additionalProperties": False}
LISTS = {"type": "array", "items": {"anyOf": [{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, OPEN]}}


@pytest.mark.parametrize("schema", [OPEN, LISTS, {"anyOf": [LISTS, {"type": "object", "properties": {"a": LISTS}}]}])
def test_a_mask_is_that_of_its_path_whatever_was_walked_before(schema):
    """Of matchers that are rolled back llguidance may give the mask of another place."""
    rng, wish = np.random.default_rng(0), Constraint("json_schema", json.dumps(schema))
    known: dict[tuple[int, ...], np.ndarray] = {}
    for _ in range(40):
        matcher, path = OF_JSON(wish, frozenset())._matcher, []
        for _ in range(8):
            mask = known[tuple(path)] = matcher.mask()
            if matcher.may_end():
                break
            path.append(int(rng.choice(np.flatnonzero(mask))))
            assert matcher.push(path[-1])
    walker = OF_JSON(wish, frozenset())._matcher
    for i in rng.integers(len(known), size=1000):
        path, mask = list(known.items())[i]
        assert all(walker.push(token) for token in path)
        assert np.array_equal(walker.mask(), mask), [SAID[token] for token in path]
        walker.pop(len(path))


def test_what_is_settled_is_not_taken_back():
    """A walk that is interrupted may ask for a token more than it pushed."""
    matcher, other = (OF_JSON(Constraint("json_schema", json.dumps(LISTS)), frozenset())._matcher for _ in range(2))
    for one in (matcher, other):
        assert one.push(SAID.index("["))
        one.settle()
    assert matcher.push(SAID.index("{"))
    matcher.pop(2)
    matcher.pop(1)
    assert np.array_equal(matcher.mask(), other.mask())
