"""What clients get is what the library says, token for token, through a client that nobody here wrote."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median

import jsonschema
import openai
import pytest

from forerun import Sampling

PROMPT = "Once upon a time"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me about a dog."}]


def test_greedy_text_is_plain_decodings(client, library):
    """R3, over the network."""
    found = client.completions.create(model="reference", prompt=PROMPT, temperature=0, max_tokens=60)
    plain = library.plain().generate(PROMPT, Sampling(temperature=0, max_tokens=60))[0]
    assert found.choices[0].text == plain.text
    assert found.choices[0].finish_reason == plain.finish_reason
    assert found.usage.completion_tokens == len(plain.tokens)
    assert found.usage.prompt_tokens == len(plain.prompt_tokens)


def test_a_seed_gives_the_librarys_texts(client, library):
    """R5: n samples, each of them the library's for its seed."""
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=3, max_tokens=40)
    found = client.completions.create(
        model="reference", prompt=[PROMPT, "The cat"], temperature=0.9, top_p=0.95, seed=3, max_tokens=40, n=3
    )
    expected = library.generate([PROMPT, "The cat"], sampling, 3)
    assert [c.text for c in found.choices] == [r.text for r in expected]
    assert [c.seed for c in found.choices] == [r.seed for r in expected]
    assert [c.index for c in found.choices] == list(range(6))
    assert len({c.text for c in found.choices}) == 6
    assert found.usage.prompt_tokens == sum(len(r.prompt_tokens) for r in expected[::3])


def test_the_best_are_the_likeliest_of_all(client):
    """best_of: texts by the mean of their tokens' logprobs; who asked for none gets none; all are counted."""
    asked = {"model": "reference", "prompt": [PROMPT, "The cat"], "temperature": 1.2, "seed": 3, "max_tokens": 20}
    every = client.completions.create(**asked, n=6, logprobs=0)
    means = [fmean(choice.logprobs.token_logprobs) for choice in every.choices]
    groups = [range(6), range(6, 12)]
    best = [i for group in groups for i in sorted(group, key=lambda i: -means[i])[:2]]
    found = client.completions.create(**asked, n=2, best_of=6)
    assert [c.text for c in found.choices] == [every.choices[i].text for i in best]
    assert [c.seed for c in found.choices] == [every.choices[i].seed for i in best]
    assert [c.index for c in found.choices] == [0, 1, 2, 3]
    assert {c.logprobs for c in found.choices} == {None}
    assert found.usage == every.usage
    told = client.completions.create(**asked, n=2, best_of=6, logprobs=1)
    assert [c.logprobs.token_logprobs for c in told.choices] == [every.choices[i].logprobs.token_logprobs for i in best]
    same = client.completions.create(**asked, n=2, best_of=2)
    assert [c.text for c in same.choices] == [every.choices[i].text for i in (0, 1, 6, 7)]


def test_a_fresh_seed_is_told(client):
    first = client.completions.create(model="reference", prompt=PROMPT, max_tokens=20).choices[0]
    again = client.completions.create(model="reference", prompt=PROMPT, max_tokens=20, seed=first.seed).choices[0]
    assert again.text == first.text


def test_a_stream_says_the_whole_with_usage_at_its_end(client):
    settings = {"model": "reference", "prompt": PROMPT, "seed": 5, "max_tokens": 50, "n": 2}
    whole = client.completions.create(**settings)
    parts = list(client.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    texts = ["".join(c.text for p in parts for c in p.choices if c.index == i) for i in range(2)]
    assert texts == [c.text for c in whole.choices]
    assert len(parts) > 4
    assert [p.usage for p in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices == []
    assert parts[-1].usage == whole.usage
    ends = [c for p in parts for c in p.choices if c.finish_reason]
    assert sorted(c.index for c in ends) == [0, 1]
    stats = {c.index: c.speculative_decoding_stats for c in ends}
    assert [stats[i] for i in range(2)] == [c.speculative_decoding_stats for c in whole.choices]


def test_usage_is_counted_in_every_part_where_that_is_asked(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {
        "model": "reference",
        "prompt": PROMPT,
        "max_tokens": 30,
        "stream": True,
        "extra_body": {"ignore_eos": True},
    }
    *parts, end = client.completions.create(**asked, stream_options=options)
    counts = [part.usage.completion_tokens for part in parts]
    assert counts == sorted(set(counts))
    assert 0 < counts[0] < counts[-1] == end.usage.completion_tokens == 30
    assert {part.usage.prompt_tokens for part in parts} == {end.usage.prompt_tokens}
    without = client.completions.create(**asked, stream_options={"continuous_usage_stats": True})
    assert {part.usage for part in without} == {None}


def test_chat_is_the_librarys(client, library):
    found = client.chat.completions.create(model="reference", messages=CHAT, temperature=0, max_completion_tokens=40)
    expected = library.chat(CHAT, Sampling(temperature=0, max_tokens=40))
    assert found.choices[0].message.content == expected.text
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].finish_reason == expected.finish_reason
    parts = [{"type": "text", "text": CHAT[1]["content"]}]
    said = [CHAT[0], {"role": "user", "content": parts}]
    stream = client.chat.completions.create(model="reference", messages=said, temperature=0, max_tokens=40, stream=True)
    deltas = [c.choices[0].delta for c in stream]
    assert deltas[0].role == "assistant"
    assert "".join(d.content or "" for d in deltas) == expected.text


def test_stop_strings_end_the_text_before_them(client, library):
    expected = library.generate(PROMPT, Sampling(temperature=0, max_tokens=60, stop=("She",)))[0]
    for stop in ("She", ["She", "qqq"]):
        found = client.completions.create(model="reference", prompt=PROMPT, temperature=0, max_tokens=60, stop=stop)
        assert found.choices[0].text == expected.text
        assert found.choices[0].finish_reason == "stop"
    assert expected.text
    assert "She" not in expected.text


def test_completion_logprobs_are_the_librarys(client, library):
    expected = library.generate(PROMPT, Sampling(seed=1, max_tokens=12, logprobs=2))[0]
    found = client.completions.create(model="reference", prompt=PROMPT, seed=1, max_tokens=12, logprobs=2).choices[0]
    assert found.logprobs.token_logprobs == pytest.approx([p.value for p in expected.logprobs], abs=1e-4)
    assert [len(top) for top in found.logprobs.top_logprobs] == [2] * 12
    assert "".join(found.logprobs.tokens) == found.text
    for token, place in zip(found.logprobs.tokens, found.logprobs.text_offset, strict=True):
        assert found.text[place:].startswith(token)


def test_an_echoed_prompt_has_logprobs(client, library):
    """As evaluations ask for them: of every token of the prompt but the first, then those of the text."""
    sampling = Sampling(seed=1, max_tokens=3, logprobs=2, prompt_logprobs=2)
    long = library.encode(PROMPT + ", there was a little girl named Lily. She liked to play.")
    for prompt in (PROMPT, long):
        expected = library.generate([prompt], sampling)[0]
        asked = {"model": "reference", "prompt": prompt, "seed": 1, "max_tokens": 3, "logprobs": 2}
        found = client.completions.create(**asked, echo=True).choices[0]
        said, wanted = found.logprobs, [*expected.prompt_logprobs, *expected.logprobs]
        assert said.token_logprobs[0] is said.top_logprobs[0] is None
        assert said.token_logprobs[1:] == pytest.approx([p.value for p in wanted[1:]], abs=1e-9)
        assert [max(top.values()) for top in said.top_logprobs[1:]] == pytest.approx([p.top[0][1] for p in wanted[1:]])
        assert found.text == library.tokenizer.decode(expected.prompt_tokens) + expected.text
        for token, place in zip(said.tokens, said.text_offset, strict=True):
            assert found.text[place : place + len(token)] == token
        bare = client.completions.create(**asked).choices[0]
        assert said.token_logprobs[-3:] == bare.logprobs.token_logprobs
        assert found.text.endswith(bare.text)


def test_logprobs_of_a_prompt_by_themselves(client, library):
    """In vLLM's form: in every choice of a completion, and once in a chat's answer."""
    wanted = library.generate([PROMPT], Sampling(max_tokens=1, prompt_logprobs=2))[0]
    more = {"max_tokens": 4, "n": 2, "extra_body": {"prompt_logprobs": 2}}
    text = client.completions.create(model="reference", prompt=PROMPT, **more)
    for choice in text.choices:
        first, *rest = choice.prompt_logprobs
        assert first is None
        assert choice.logprobs is None
        for token, own, found in zip(wanted.prompt_tokens[1:], wanted.prompt_logprobs[1:], rest, strict=True):
            assert found[str(token)]["logprob"] == pytest.approx(own.value)
            assert found[str(token)]["rank"] == own.rank
            assert found[str(token)]["decoded_token"] == library.tokenizer.decode([token])
            assert {int(t): one["logprob"] for t, one in found.items() if one["rank"] <= 2} == pytest.approx(
                dict(own.top)
            )
            assert len(found) == 2 + (own.rank > 2)
    chat = client.chat.completions.create(model="reference", messages=CHAT, **more)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_chat_logprobs_are_the_librarys(client, library):
    expected = library.chat(CHAT, Sampling(seed=1, max_tokens=12, logprobs=3))
    settings = {"model": "reference", "messages": CHAT, "seed": 1, "max_tokens": 12, "logprobs": True}
    found = client.chat.completions.create(**settings, top_logprobs=3).choices[0]
    tokens = found.logprobs.content
    assert [t.logprob for t in tokens] == pytest.approx([p.value for p in expected.logprobs], abs=1e-4)
    assert [len(t.top_logprobs) for t in tokens] == [3] * len(expected.tokens)
    assert b"".join(bytes(t.bytes) for t in tokens).decode().startswith(found.message.content)
    parts = client.chat.completions.create(**settings, stream=True)
    streamed = [t for p in parts for c in p.choices if c.logprobs for t in c.logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in tokens]


def test_an_echo_is_put_before_the_text(client):
    settings = {"model": "reference", "temperature": 0, "max_tokens": 5}
    text = client.completions.create(**settings, prompt=PROMPT).choices[0].text
    assert client.completions.create(**settings, prompt=PROMPT, echo=True).choices[0].text == PROMPT + text
    parts = client.completions.create(**settings, prompt=PROMPT, echo=True, stream=True)
    assert "".join(p.choices[0].text for p in parts) == PROMPT + text


def test_tokens_are_a_prompt(client, library):
    tokens = library.encode(PROMPT)
    texts = [
        client.completions.create(model="reference", prompt=p, temperature=0, max_tokens=5).choices[0].text
        for p in (PROMPT, tokens, [tokens])
    ]
    assert len(set(texts)) == 1


CHARACTERS = "héé🙂🙂ßé"


@pytest.mark.parametrize("seed", range(4))
def test_no_character_is_split(client, library, seed):
    """R8: tokens that are parts of characters, drawn at random; what is streamed adds up to the decoded whole."""
    tokens = sorted(set(library.tokenizer.encode(CHARACTERS, bos=False)))
    settings = {"model": "reference", "prompt": PROMPT, "seed": seed, "max_tokens": 120, "temperature": 2.0}
    more = {"allowed_tokens": tokens, "logprobs": 0}
    whole = client.completions.create(**settings, extra_body=more).choices[0].text
    parts = [p.choices[0] for p in client.completions.create(**settings, extra_body=more, stream=True)]
    assert "".join(p.text for p in parts) == whole
    sampling = Sampling(seed=seed, max_tokens=120, temperature=2.0, allowed_tokens=tuple(tokens))
    assert library.generate(PROMPT, sampling)[0].text == whole
    assert whole.count("\ufffd") < 120
    assert any(c in whole for c in "é🙂ß")
    assert len(parts) > 3


def test_a_prediction_is_drafted(client):
    plain = {"model": "reference", "messages": CHAT, "temperature": 0, "max_tokens": 40}
    text = client.chat.completions.create(**plain).choices[0]
    found = client.chat.completions.create(**plain, prediction={"type": "content", "content": text.message.content})
    assert found.choices[0].message.content == text.message.content


def test_acceptance_is_counted_with_the_bonus(client):
    stats = client.completions.create(model="reference", prompt=PROMPT, temperature=0, max_tokens=60).choices[0]
    found = stats.speculative_decoding_stats
    assert found["num_spec_steps"] > 0
    accepted = found["num_accepted_draft_tokens"]
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / found["num_spec_steps"])
    assert found["draft_acceptance_rate"] == pytest.approx(accepted / found["num_draft_tokens"])
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"]
    assert sum(i * count for i, count in enumerate(found["acceptance_histogram"])) == accepted


def test_sixteen_at_once_are_sixteen_alone(client, library):
    """R4, R13 in small: greedy and sampled, streamed and whole, short and long, together."""
    asks = [
        (f"{PROMPT} number {i}", {"temperature": [0.0, 1.0][i % 2], "seed": i, "max_tokens": 10 + 5 * i})
        for i in range(16)
    ]

    def ask(i):
        prompt, settings = asks[i]
        found = client.completions.create(model="reference", prompt=prompt, stream=i % 3 == 0, **settings)
        return "".join(p.choices[0].text for p in found) if i % 3 == 0 else found.choices[0].text

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(ask, range(16)))
    assert texts == [library.generate(prompt, Sampling(**settings))[0].text for prompt, settings in asks]


REFUSED = [
    ({"extra_body": {"temprature": 1}}, "temprature", "did you mean 'temperature'"),
    ({"temperature": -1}, "temperature", "give a number from 0"),
    ({"temperature": "hot"}, "temperature", "valid number"),
    ({"top_p": 0}, "top_p", "give a number"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 9}, "n", "at most 8"),
    ({"max_tokens": 0}, "max_tokens", "give a whole number from 1"),
    ({"max_tokens": True}, "max_tokens", "valid integer"),
    ({"logprobs": 21}, "logprobs", "from 0 to 20"),
    ({"seed": 2**70}, "seed", "give a whole number"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 items"),
    ({"stop": ""}, None, "stop string is empty"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "valid integer"),
    ({"logit_bias": {"99999": 1}}, None, "does not exist"),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias", "at most 300"),
    ({"best_of": 9}, "best_of", "at most 8"),
    ({"best_of": 2, "n": 3}, "best_of", "no more than there are"),
    ({"best_of": 2, "stream": True}, "best_of", "leave stream or best_of out"),
    ({"suffix": "end"}, "suffix", "cannot be filled in"),
    ({"echo": True, "logprobs": 1, "stream": True}, "stream", "leave stream or them out"),
    ({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "stream", "leave stream or them out"),
    ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs", "from 0 to 20"),
    ({"prompt": []}, None, "prompt is empty"),
    ({"prompt": [1, 2, 99999]}, None, "does not exist"),
    ({"prompt": "word " * 2000}, None, "shorten it"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
    ({"extra_body": {"tools": [{"type": "function"}]}}, "tools", "use /v1/chat/completions"),
    ({"extra_body": {"guided_json": {"type": "strnig"}}}, "constraint", "does not compile"),
    ({"extra_body": {"constraint": {"name": "regx", "text": "a"}}}, None, "did you mean 'regex'"),
    ({"extra_body": {"constraint": {"name": "regex:most=9999999", "text": "a"}}}, "constraint", "without options"),
    ({"extra_body": {"guided_regex": "a+", "guided_json": {}}}, None, "give one of them"),
    ({"extra_body": {"stop_token_ids": [-1]}}, None, "does not exist"),
    ({"extra_body": {"min_p": 1.5}}, "min_p", "from 0.0 to 1.0"),
]


@pytest.mark.parametrize(
    ("changed", "param", "sentence"), REFUSED, ids=[str(changed)[:60] for changed, _, _ in REFUSED]
)
def test_what_cannot_be_is_refused_with_the_field(client, changed, param, sentence):
    """R6: nothing is silently ignored."""
    with pytest.raises(openai.BadRequestError) as problem:
        client.completions.create(**{"model": "reference", "prompt": PROMPT, "max_tokens": 4, **changed})
    assert sentence in problem.value.body["message"]
    assert problem.value.param == param
    assert problem.value.body["type"] == "invalid_request_error"


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Tom"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
FORMS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}},
    {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    {"extra_body": {"guided_json": SCHEMA}},
]


@pytest.mark.parametrize("form", FORMS, ids=["response_format", "structured_outputs", "guided_json"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_is_kept(client, form, temperature):
    """B11: the end of the grammar may lie inside a draft."""
    asked = {"model": "reference", "messages": [{"role": "user", "content": "Who is it?"}], "max_tokens": 60, "seed": 1}
    answer = client.chat.completions.create(**asked, temperature=temperature, **form)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)


def test_a_regex_and_a_choice_are_kept_in_a_stream(client):
    for form, right in (
        ({"guided_regex": "[a-f]{3}-[0-9]{2}"}, r"[a-f]{3}-[0-9]{2}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ):
        asked = {"model": "reference", "prompt": PROMPT, "max_tokens": 30, "stream": True}
        parts = list(client.completions.create(**asked, extra_body=form))
        assert re.fullmatch(right, "".join(part.choices[0].text for part in parts))


def test_a_chat_without_text_is_refused(client):
    picture = [{"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}]
    for content, sentence in ((picture, "no field 'image_url'"), ([{"type": "audio"}], "parts of text only")):
        with pytest.raises(openai.BadRequestError, match=sentence):
            client.chat.completions.create(model="reference", messages=[{"role": "user", "content": content}])
    with pytest.raises(openai.BadRequestError, match="role"):
        client.chat.completions.create(model="reference", messages=[{"role": "<|system|>", "content": "a"}])


def test_a_model_that_is_not_here_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="ask for 'reference'"):
        client.completions.create(model="gpt-4", prompt=PROMPT)
    assert client.models.retrieve("reference").id == "reference"
    assert [m.id for m in client.models.list()] == ["reference"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_notes_of_the_caller_change_nothing(client):
    settings = {"model": "reference", "prompt": PROMPT, "seed": 1, "max_tokens": 6}
    notes = {"metadata": {"a": "b"}, "store": False, "tools": [], "tool_choice": "none"}
    plain = client.completions.create(**settings).choices[0].text
    assert client.completions.create(**settings, user="me", extra_body=notes).choices[0].text == plain


def test_tokens_and_text_go_both_ways(web, library):
    post = web.post
    found = post("/tokenize", json={"prompt": PROMPT, "return_token_strs": True}).json()
    assert found["tokens"] == library.encode(PROMPT)
    assert "".join(found["token_strs"]) == PROMPT
    assert found["count"] == len(found["tokens"])
    assert post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": PROMPT}
    assert post("/tokenize", json={"messages": CHAT}).json()["tokens"] == library.tokenizer.chat(CHAT)
    assert post("/tokenize", json={}).status_code == 400
    assert post("/detokenize", json={"tokens": [2**40]}).status_code == 400


def test_metrics_have_the_names_that_routers_know(web, client):
    """B20: nothing is negative."""
    client.completions.create(model="reference", prompt=PROMPT, temperature=0, max_tokens=30)
    text = web.get("/metrics").text
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert min(values.values()) >= 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f"forerun:{name}" in values
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert values[f"forerun:{name}_seconds_count"] > 0
    drafts = values["forerun:spec_decode_num_drafts_total"]
    accepted = values["forerun:spec_decode_num_accepted_tokens_total"]
    at = [v for k, v in values.items() if k.startswith("forerun:spec_decode_num_accepted_tokens_per_pos_total{")]
    assert 0 < sum(at) == accepted <= values["forerun:spec_decode_num_draft_tokens_total"]
    assert at == sorted(at, reverse=True)
    assert drafts >= at[0]
    assert values["forerun:generation_tokens_total"] >= 30


def test_the_dashboard_shows_metrics_that_there_are(web):
    known = {line.split()[2] for line in web.get("/metrics").text.splitlines() if line.startswith("# TYPE")}
    shown = (Path(__file__).parents[3] / "examples" / "grafana.json").read_text()
    named = set(re.findall(r"forerun:\w+", shown))
    assert len(named) > 8
    assert {name.removesuffix("_bucket") for name in named} <= known


def test_answers_carry_a_request_id(web):
    get = web.get
    assert get("/version", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for strange in ("a b", "x" * 65, "<script>"):
        assert get("/version", headers={"x-request-id": strange}).headers["x-request-id"] != strange


def test_no_answer_waits_for_an_acknowledgement(web):
    """Small packets go at once; held back, each answer would take the 40 ms after which a client acknowledges."""
    seconds = [web.get("/version").elapsed.total_seconds() for _ in range(40)]
    assert median(seconds) < 0.03


def parts_with_steps(web, body):
    """Every choice of every part of a stream."""
    asked = {**body, "stream": True, "stream_options": {"include_steps": True}}
    lines = web.post("/v1/completions", json=asked).text.split("\n\n")
    return [c for line in lines if line.startswith("data: {") for c in json.loads(line[6:])["choices"]]


@pytest.mark.parametrize("n", [1, 3])
def test_steps_that_are_asked_for_tell_the_text(web, n):
    """Every choice has its own, with the tree that was judged; nobody else's stream has any."""
    body = {"prompt": PROMPT, "seed": 5, "max_tokens": 40, "n": n}
    assert '"step"' not in web.post("/v1/completions", json={**body, "stream": True}).text
    choices = parts_with_steps(web, body)
    whole = web.post("/v1/completions", json=body).json()
    for expected in whole["choices"]:
        own = [c for c in choices if c["index"] == expected["index"]]
        steps = [c["step"] for c in own]
        assert "".join(text for step in steps for _, text, _ in step["tokens"]) == expected["text"]
        assert "".join(c["text"] for c in own) == expected["text"]
        stats = expected["speculative_decoding_stats"]
        assert sum(len(step["draft"]) for step in steps) == stats["num_draft_tokens"] > 0
        assert sum(len(step["path"]) for step in steps) <= stats["num_accepted_draft_tokens"]
        for step in steps:
            taken = [step["draft"][node][:3] for node in step["path"]]
            assert taken == step["tokens"][: len(taken)]


def test_steps_of_several_choices_do_not_mix_their_characters(reference, web):
    """Half characters of one are not ended by another."""
    pieces = reference[1].tokenizer.pieces()
    halves = [pieces.index("é".encode()[:1]), pieces.index("é".encode()[1:])]
    body = {"prompt": PROMPT, "seed": 5, "max_tokens": 30, "n": 3, "allowed_tokens": halves, "ignore_eos": True}
    choices, whole = parts_with_steps(web, body), web.post("/v1/completions", json=body).json()
    for expected in whole["choices"]:
        steps = [c["step"] for c in choices if c["index"] == expected["index"]]
        said = "".join(text for step in steps for _, text, _ in step["tokens"])
        assert "é" in said
        assert expected["text"] in {said, said + "\ufffd"}  # the last token may be half a character
