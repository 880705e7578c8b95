"""Tools are called through a client that nobody here wrote, whatever the model's template."""

import json

import jsonschema
import openai
import pytest

HERMES = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    '{% if tools %}<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}'
    "{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
AT = {"type": "object", "properties": {"at": {"enum": ["home", "sea"]}}, "required": ["at"]}
AT["additionalProperties"] = False
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look around.", "parameters": AT}},
    {"type": "function", "function": {"name": "go", "parameters": AT}},
]
ASKED = {"model": "reference", "messages": [{"role": "user", "content": "Go!"}], "seed": 3, "max_tokens": 150}


def client_of(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def calls(message):
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


def streamed(parts, index):
    """(text, [(id, name, arguments)], reason) of one choice, as clients put it together."""
    text, found, reason = "", {}, None
    for choice in (c for part in parts for c in part.choices if c.index == index):
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            before = found.get(call.index, ("", "", ""))
            now = (call.id or "", call.function.name or "", call.function.arguments or "")
            found[call.index] = tuple(a + b for a, b in zip(before, now, strict=True))
    assert list(found) == list(range(len(found)))
    return text, list(found.values()), reason


def test_tools_are_called_where_they_must_be(talking):
    """With a template of a known form, whole and streamed; arguments keep to their schema."""
    with talking(HERMES) as url, client_of(url) as client:
        create = client.chat.completions.create
        for choice in ("required", {"type": "function", "function": {"name": "go"}}):
            asked = {**ASKED, "tools": TOOLS, "tool_choice": choice, "n": 2, "temperature": 0.8}
            whole, parts = create(**asked), list(create(**asked, stream=True))
            for one in whole.choices:
                assert one.finish_reason == "tool_calls"
                assert one.message.content is None
                assert len({call.id for call in one.message.tool_calls}) == len(one.message.tool_calls) >= 1
                for name, arguments in calls(one.message):
                    assert name in ({"look", "go"} if choice == "required" else {"go"})
                    jsonschema.validate(arguments, AT)
                text, found, reason = streamed(parts, one.index)
                assert (text, reason) == ("", "tool_calls")
                assert [(name, json.loads(given)) for _, name, given in found] == calls(one.message)
        one = create(**ASKED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert len(one.message.tool_calls) == 1
        cut = create(**{**ASKED, "max_tokens": 4}, tools=TOOLS, tool_choice="required").choices[0]
        assert (cut.finish_reason, cut.message.tool_calls) == ("length", None)
        assert cut.message.content.startswith("<tool_c")


def test_a_text_without_calls_is_an_answer_as_ever(talking):
    with talking(HERMES) as url, client_of(url) as client:
        create = client.chat.completions.create
        for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
            asked = {**ASKED, "tools": TOOLS, **choice, "max_tokens": 20}
            one = create(**asked).choices[0]
            assert (one.finish_reason, one.message.tool_calls) == ("length", None)
            assert one.message.content
            assert streamed(list(create(**asked, stream=True)), 0) == (one.message.content, [], "length")
        plain = create(**{**ASKED, "max_tokens": 20}).choices[0].message.content
        assert one.message.content == plain  # none: nothing says that there are tools
        for changed, sentence in (
            ({"tool_choice": {"type": "function", "function": {"name": "lok"}}}, "did you mean 'look'"),
            ({"tools": [TOOLS[0], TOOLS[0]]}, "two functions of one name"),
            ({"response_format": {"type": "json_object"}}, "a form that no call has"),
            ({"response_format": {"type": "json_object"}, "tool_choice": "required"}, "ask for one of them"),
            ({"tools": [], "tool_choice": "required"}, "give tools"),
            ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools cannot be read"),
            ({"tools": [{"type": "function", "function": {"name": "a", "parametres": {}}}]}, "did you mean 'param"),
        ):
            with pytest.raises(openai.BadRequestError, match=sentence):
                create(**{**ASKED, "tools": TOOLS, **changed})


def test_what_was_called_and_found_reaches_the_template(talking):
    """The model's own message goes back as it came, then the tool's."""
    with talking(HERMES) as url, client_of(url) as client:
        create = client.chat.completions.create
        one = create(**ASKED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
        found = {"role": "tool", "tool_call_id": one.tool_calls[0].id, "content": "a blue door"}
        said = [*ASKED["messages"], one.model_dump(exclude_none=True), found]
        tokens = client.post("/../tokenize", body={"messages": said}, cast_to=object)["tokens"]
        text = client.post("/../detokenize", body={"tokens": tokens}, cast_to=object)["prompt"]
        assert json.dumps(calls(one)[0][1]) in text
        assert "a blue door" in text
        assert create(**{**ASKED, "messages": said, "max_tokens": 5}).choices[0].message.content
        wrong = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "go", "arguments": "[]"}}]}
        with pytest.raises(openai.BadRequestError, match="no JSON object"):
            create(**{**ASKED, "messages": [wrong]})


def test_a_template_of_no_known_form_is_held_to_calls_or_refused(client):
    """The bundled model's own."""
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="no known form of tool calls; set tool_choice to required"):
        create(**ASKED, tools=TOOLS)
    one = create(**ASKED, tools=TOOLS, tool_choice="required").choices[0]
    assert one.finish_reason == "tool_calls"
    for _, arguments in calls(one.message):
        jsonschema.validate(arguments, AT)
    said = [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "go", "arguments": "{}"}}]}]
    with pytest.raises(openai.BadRequestError, match="writes no tool calls"):
        create(**{**ASKED, "messages": said})
