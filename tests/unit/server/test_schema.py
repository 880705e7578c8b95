"""Bodies: every field of Sampling is there under its own name, and nothing unknown goes by."""

import json
from contextlib import suppress
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server import strict
from forerun.server.refusal import Refusal
from forerun.server.schema import CHAT, COMPLETION, constraint, read
from forerun.types import Constraint, Sampling

KINDS = pytest.mark.parametrize(
    ("kind", "base"),
    [(COMPLETION, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})],
    ids=["completion", "chat"],
)
GIVEN = {  # field -> as JSON, and as Sampling has it
    "temperature": (0.5, 0.5),
    "top_k": (3, 3),
    "top_p": (0.5, 0.5),
    "min_p": (0.5, 0.5),
    "typical_p": (0.5, 0.5),
    "epsilon_cutoff": (0.5, 0.5),
    "eta_cutoff": (0.5, 0.5),
    "repetition_penalty": (2, 2),
    "presence_penalty": (2, 2),
    "frequency_penalty": (2, 2),
    "no_repeat_ngram": (2, 2),
    "logit_bias": ({"5": 2}, {5: 2.0}),
    "bad_words": ([[1, 2], [3]], ((1, 2), (3,))),
    "allowed_tokens": ([1, 2], (1, 2)),
    "constraint": ({"name": "regex", "text": "a+"}, Constraint("regex", "a+")),
    "min_tokens": (2, 2),
    "max_tokens": (7, 7),
    "stop": (["a", "b"], ("a", "b")),
    "stop_token_ids": ([1, 2], (1, 2)),
    "ignore_eos": (True, True),
    "seed": (5, 5),
    "prompt_logprobs": (3, 3),
}


def body(kind, values):
    return read(kind, json.dumps(values).encode())


@KINDS
def test_no_field_of_sampling_is_left_out(kind, base):
    """R6."""
    assert {f.name for f in fields(Sampling)} == {*GIVEN, "logprobs"}
    assert {*GIVEN, "logprobs"} <= kind.model_fields.keys()
    for name, (written, expected) in GIVEN.items():
        assert body(kind, {**base, name: written}).sampling() == Sampling(**{name: expected})
    assert body(kind, base).sampling() == Sampling()
    assert body(kind, {**base, **dict.fromkeys(GIVEN)}).sampling() == Sampling()


def test_each_endpoint_asks_for_logprobs_in_its_own_way():
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert body(COMPLETION, {"prompt": "a", "logprobs": 3}).sampling().logprobs == 3
    assert body(COMPLETION, {"prompt": "a", "logprobs": 3}).sampling().prompt_logprobs is None
    assert body(COMPLETION, {"prompt": "a", "logprobs": 3, "echo": True}).sampling().prompt_logprobs == 3
    both = {"logprobs": 3, "echo": True, "prompt_logprobs": 5}
    assert body(COMPLETION, {"prompt": "a", **both}).sampling().prompt_logprobs == 5
    assert body(CHAT, {**chat, "logprobs": True}).sampling().logprobs == 0
    assert body(CHAT, {**chat, "logprobs": True, "top_logprobs": 4}).sampling().logprobs == 4
    assert body(CHAT, {**chat, "logprobs": False}).sampling().logprobs is None
    assert body(CHAT, {**chat, "max_completion_tokens": 4, "max_tokens": 9}).sampling().max_tokens == 4
    with pytest.raises(Refusal, match="set logprobs to true"):
        body(CHAT, {**chat, "top_logprobs": 4}).sampling()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([], [[]]),
        ("", [""]),
    ],
)
def test_every_form_of_a_prompt(prompt, prompts):
    assert list(body(COMPLETION, {"prompt": prompt}).prompts()) == prompts


def test_parts_of_text_are_a_text_and_names_reach_the_template():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = body(CHAT, {"messages": [{"role": "user", "content": parts, "name": "Ann"}, {"role": "assistant"}]})
    assert [turn.message() for turn in found.messages] == [
        {"role": "user", "content": "ab", "name": "Ann"},
        {"role": "assistant", "content": ""},
    ]
    assert body(COMPLETION, {"prompt": "a", "prediction": {"type": "content", "content": parts}}).expected() == "ab"
    for prediction in ({"type": "content", "content": [{"type": "image"}]}, {"type": "text", "content": "a"}):
        with pytest.raises(Refusal):
            body(COMPLETION, {"prompt": "a", "prediction": prediction}).expected()


@KINDS
@pytest.mark.parametrize(
    ("values", "param", "sentence"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        (
            {"stream_options": {"include_usages": True}, "stream": True},
            "include_usages",
            "did you mean 'include_usage'",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "'json_object' or 'json_schema'"),
        ({"structured_outputs": {"jsn": 1}}, "jsn", "did you mean 'json'"),
        ({"temperature": 101}, "temperature", "from 0.0 to 100.0"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"ignore_eos": 1}, "ignore_eos", "valid boolean"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids", "valid integer"),
        ({"seed": 1e30}, "seed", "valid integer"),
        ({"constraint": {"name": "regex", "text": "a", "txet": "b"}}, "txet", "did you mean 'text'"),
        ({"functions": [{}]}, "functions", "use tools and tool_choice"),
        ({"chat_template": "{{ 1 }}"}, "chat_template", "the model's own"),
        ({"stop": "x" * 257}, "stop", "at most 256"),
    ],
)
def test_what_is_wrong_is_named(kind, base, values, param, sentence):
    with pytest.raises(Refusal, match=sentence) as problem:
        body(kind, {**base, **values}).sampling()
    assert (problem.value.status, problem.value.param) == (400, param)


@KINDS
@pytest.mark.parametrize(
    "values", [{"tools": []}, {"tools": None}, {"suffix": ""}, {"tool_choice": "none"}, {"user": "me"}]
)
def test_what_asks_for_nothing_is_taken(kind, base, values):
    assert body(kind, {**base, **values}).sampling() == Sampling()


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_no_json_does_more_than_be_refused(value):
    """R23 in small: whatever comes, it is a body or a Refusal."""
    for kind in (COMPLETION, CHAT):
        for place in (value, {"prompt": value, "messages": value}, {"prompt": "a", "stop": value, "logit_bias": value}):
            with suppress(Refusal):
                assert body(kind, place).sampling().max_tokens is None


@given(st.binary())
def test_no_bytes_do_more_than_be_refused(raw):
    with pytest.raises(Refusal):
        read(CHAT, raw)


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_object", "")),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, "json_schema"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema"),
        ({"structured_outputs": {"json_object": True}}, ("json_object", "")),
        ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, ("choice", '["a", "b"]')),
        ({"structured_outputs": {"grammar": "start: A"}}, ("lark", "start: A")),
        ({"guided_json": SCHEMA}, "json_schema"),
        ({"guided_regex": "a+"}, ("regex", "a+")),
        ({"guided_choice": ["a", "b"]}, ("choice", '["a", "b"]')),
        ({"guided_grammar": "start: A"}, ("lark", "start: A")),
    ],
)
def test_every_way_to_hold_the_output_to_a_form(values, expected):
    found = constraint(body(COMPLETION, {"prompt": "a", **values}))
    assert found == (("json_schema", json.dumps(SCHEMA)) if expected == "json_schema" else expected)


def test_two_forms_at_once_are_refused():
    for values in (
        {"guided_regex": "a", "structured_outputs": {"choice": ["a"]}},
        {"response_format": {"type": "json_object"}, "guided_json": SCHEMA},
    ):
        with pytest.raises(Refusal, match="give one of them"):
            constraint(body(COMPLETION, {"prompt": "a", **values}))
    with pytest.raises(Refusal, match="no json_schema"):
        constraint(body(COMPLETION, {"prompt": "a", "response_format": {"type": "json_schema"}}))


@pytest.mark.parametrize(
    "raw", [b"[" * 64 + b"]" * 64, b'{"a": {"b": 1}, "c": {"b": "[[\\"[{"}}', b'["' + b"[" * 99 + b'"]']
)
def test_what_has_one_meaning_is_read(raw):
    assert strict.loads(raw) == json.loads(raw)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b'{"a": 1, "\\u0061": 2}', "twice"),
        (b'[{"a": {"b": 1, "b": 1}}]', "twice"),
        (b"[NaN]", "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b"[" + b"1," * (2**18 + 1) + b"1]", "parts"),
        (b'"' + b'\\"' * 2_000_000, "Unterminated"),  # quadratic for a search that goes back
        (b"9" * 5000, "digits"),
        (b"\xff", "utf-8"),
    ],
)
def test_what_has_several_or_is_without_end_is_not(raw, why):
    """S7."""
    with pytest.raises(ValueError, match=why):
        strict.check(raw)
