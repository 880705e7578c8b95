"""Calls are read as their forms write them, however the text is cut; what is none stays text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from forerun.server.tools import BARE, Calling, form_of, held

HERMES = form_of('<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>')
LLAMA = form_of(
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}'
)
MISTRAL = form_of("{{ '[TOOL_CALLS] [' }}")
NAMES = frozenset({"look", "go"})
LOOK, GO = ("look", {"at": "</tool_call>{}[\u00e9 <tool_call>"}), ("go", {})


def written(call, arguments="arguments"):
    return json.dumps({"name": call[0], arguments: call[1]}, ensure_ascii=False)


READ = [
    (HERMES, f"<tool_call>\n{written(LOOK)}\n</tool_call>", "", [LOOK]),
    (HERMES, f"So: <tool_call>{written(LOOK)}</tool_call>\n<tool_call>{written(GO)}\n", "So: ", [LOOK, GO]),
    (HERMES, f"<tool_call>{written(GO)}</tool_call> and then", "and then", [GO]),
    (HERMES, "a < b, <tool_c", "a < b, <tool_c", []),
    (HERMES, "<tool_call>go</tool_call> b", "<tool_call>go</tool_call> b", []),
    (
        HERMES,
        f"<tool_call>{written(('other', {}))}</tool_call>",
        f"<tool_call>{written(('other', {}))}</tool_call>",
        [],
    ),
    (HERMES, f"<tool_call>no <tool_call>{written(GO)}</tool_call>", "<tool_call>no ", [GO]),
    (HERMES, '<tool_call>{"name": "go", "arguments": NaN}</tool_call>', None, []),
    (HERMES, '<tool_call>{"name": "go", "arguments": []}</tool_call>', None, []),
    (HERMES, "<tool_call>" + "[" * 100_000 + "</tool_call>", None, []),
    (LLAMA, f" {written(LOOK, 'parameters')}\n", "", [LOOK]),
    (LLAMA, f"{written(GO, 'parameters')} is it", None, []),
    (LLAMA, 'It is {"name": "go"}', None, []),
    (LLAMA, '{"name": "other", "parameters": {}}', None, []),
    (MISTRAL, f"[TOOL_CALLS] [{written(LOOK)}, {written(GO)}]", "", [LOOK, GO]),
    (MISTRAL, f"[{written(GO)}]", "", [GO]),
    (MISTRAL, f"[{written(GO)}, 1]", None, []),
    (MISTRAL, "[1] is a footnote", None, []),
    (MISTRAL, "", "", []),
]


def let_through(constraint, text):
    """Whether a whole text keeps to a constraint."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(constraint.text))
    assert not matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def heard(calling, pieces):
    reader = calling.reader()
    parts = [reader.hear(piece, over=False) for piece in pieces] + [reader.hear("", over=True)]
    calls = [(call.name, json.loads(call.arguments)) for _, found in parts for call in found]
    return "".join(said for said, _ in parts), calls


@pytest.mark.parametrize(("form", "text", "said", "calls"), READ, ids=range(len(READ)))
def test_calls_are_read_however_the_text_is_cut(form, text, said, calls):
    expected = text if said is None else said, calls
    assert heard(Calling(form, NAMES), [text]) == expected
    if len(text) < 1000:
        assert heard(Calling(form, NAMES), text) == expected
        for place in range(len(text)):
            assert heard(Calling(form, NAMES), [text[:place], text[place:]]) == expected


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "{", "[", "a", " ", "\n", "[TOOL_CALLS]"])))
def test_a_text_without_calls_is_left_as_it_is(pieces):
    for form in (HERMES, LLAMA, MISTRAL):
        assert heard(Calling(form, NAMES), pieces) == ("".join(pieces), [])


def test_text_comes_as_soon_as_it_can_be_no_call():
    for form, begins in ((HERMES, "<tool_cal"), (LLAMA, " {"), (MISTRAL, "\n[")):
        reader = Calling(form, NAMES).reader()
        assert reader.hear("Hello <", over=False)[0].startswith("Hello")
        reader = Calling(form, NAMES).reader()
        assert reader.hear(begins, over=False) == ("", [])
    reader = Calling(HERMES, NAMES).reader()
    assert reader.hear(f"<tool_call>{written(GO)}</tool_call>", over=False)[1]


def test_one_call_where_one_may_be():
    text = f"<tool_call>{written(LOOK)}</tool_call><tool_call>{written(GO)}</tool_call>"
    for pieces in ([text], text):
        assert heard(Calling(HERMES, NAMES, most=1), pieces) == ("", [LOOK])
    assert heard(Calling(BARE, NAMES, most=1), f"[{written(LOOK)}, {written(GO)}]") == ("", [LOOK])


@pytest.mark.parametrize(
    "template",
    ["{{ messages }}", "<tool_call><function=a>", "[TOOL_CALLS]a[ARGS]", "<tool_call>a<arg_key>"],
)
def test_other_forms_are_not_taken_for_these(template):
    assert form_of(template) is None


FUNCTIONS = [
    {"name": "look", "parameters": {"$defs": {"p": {"enum": ["a", "b"]}}, "properties": {"at": {"$ref": "#/$defs/p"}}}},
    {"name": "go"},
]


@pytest.mark.parametrize("form", [HERMES, LLAMA, MISTRAL], ids=["hermes", "llama", "mistral"])
@pytest.mark.parametrize("several", [True, False])
def test_what_is_held_to_calls_is_read_as_calls(form, several):
    """Each form's own text is let through, to its end, and is read back."""
    calls = [("look", {"at": "b"}), ("go", {"x": [1]})][: 2 if several and form.most > 1 else 1]
    text = form.before + form.between.join(written(call, form.arguments) for call in calls) + form.after
    constraint = held(form, FUNCTIONS, several=several)
    assert let_through(constraint, text)
    assert heard(Calling(form, NAMES), text) == ("", calls)
    for wrong in (text.replace("look", "other"), text.replace('"b"', '"c"'), text[:-1], "no"):
        assert not let_through(constraint, wrong)
    more = form.before + form.between.join([written(("look", {"at": "b"}), form.arguments)] * 2) + form.after
    assert let_through(constraint, more) is (several and form.most > 1)
