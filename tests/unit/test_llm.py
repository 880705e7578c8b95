"""What may be handed to `LLM`: texts, ids and numbers as other libraries have them; anything else is one sentence."""

from pathlib import Path

import numpy as np
import pytest
import torch

from forerun import LLM, Sampling
from forerun.errors import ConfigError, ModelError, RequestError
from forerun.models.load import folder_of

GREEDY = Sampling(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def llm():
    return LLM(Path(folder_of("reference")), drafter="ngram", threads=1)


def tokens(results):
    return [result.tokens for result in results]


@pytest.mark.parametrize(
    "ids",
    [
        (5, 6, 7),
        range(5, 8),
        np.array([5, 6, 7]),
        torch.tensor([5, 6, 7]),
        [np.int64(5), np.int64(6), 7],
        [torch.tensor(5), torch.tensor(6), torch.tensor(7)],
        np.array([[5, 6, 7]]),
        torch.tensor([[5, 6, 7]]),
        [np.array([5, 6, 7])],
    ],
    ids=repr,
)
def test_token_ids_may_be_of_any_library(llm, ids):
    assert tokens(llm.generate(ids, GREEDY)) == tokens(llm.generate([[5, 6, 7]], GREEDY))


def test_prompts_may_be_anything_that_lists_them(llm):
    expected = tokens([*llm.generate("Once", GREEDY), *llm.generate([5, 6], GREEDY)])
    for prompts in (["Once", [5, 6]], ("Once", (5, 6)), iter(["Once", np.array([5, 6])])):
        assert tokens(llm.generate(prompts, GREEDY)) == expected


@pytest.mark.parametrize("prompts", [None, 5, 5.0, b"Once", {"prompt": "Once"}, ["Once", 5], [5.5], ["Once", None]])
def test_what_is_no_prompt_is_one_sentence(llm, prompts):
    with pytest.raises(
        RequestError, match=r"^(prompts is|a prompt is) .*; give a text, token ids, or a list of either\.$"
    ):
        llm.generate(prompts, GREEDY)
    assert not llm.engine.requests


@pytest.mark.parametrize("prompts", [[5, "Once"], [5, -1], [5, 6.5], [5, None], [True, False]], ids=repr)
def test_what_is_no_token_id_is_one_sentence(llm, prompts):
    with pytest.raises(RequestError, match=r"^token id .* in the prompt does not exist; use whole numbers"):
        llm.generate(prompts, GREEDY)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, 0.5, "greedy", [{"temperature": 0}]], ids=repr)
def test_what_is_no_sampling_is_one_sentence(llm, sampling):
    with pytest.raises(RequestError):
        llm.generate(["Once"], sampling)
    with pytest.raises(RequestError, match=r"^sampling is .*; give a Sampling\.$"):
        next(llm.stream("Once", sampling))


@pytest.mark.parametrize("messages", ["Hello", {"role": "user", "content": "Hello"}], ids=repr)
def test_what_is_no_conversation_is_one_sentence(llm, messages):
    with pytest.raises(
        RequestError, match=r"^messages is .*; give a list of messages, each with a role and content\.$"
    ):
        llm.chat(messages, GREEDY)


def test_a_model_is_a_folder_or_a_model(llm):
    assert tokens(LLM(llm.model, llm.tokenizer, drafter="ngram").generate("Once", GREEDY)) == tokens(
        llm.generate("Once", GREEDY)
    )
    with pytest.raises(ModelError, match="there is no model folder '5'"):
        LLM(5)


def test_a_keyword_that_is_none_is_told_the_nearest_of_all():
    with pytest.raises(ConfigError, match=r"has no option 'drafer'; did you mean 'drafter'\?"):
        LLM("toy:0:5", drafer="ngram")
    with pytest.raises(ConfigError, match=r"drafter 'ngram' has no option 'wdth'; did you mean 'width'\?"):
        LLM("toy:0:5", drafter="ngram", wdth=3)


def test_numbers_may_be_of_any_library():
    plain = Sampling(0.5, 3, seed=7, max_tokens=4, stop_token_ids=(5, 6), allowed_tokens=(1, 2), logit_bias={3: 0.5})
    other = Sampling(
        np.float64(0.5),
        np.int32(3),
        seed=np.uint64(7),
        max_tokens=torch.tensor(4),
        stop_token_ids=np.array([5, 6]),
        allowed_tokens=torch.tensor([1, 2]),
        logit_bias={np.int64(3): np.float64(0.5)},
    )
    assert other == plain
    assert {type(value) for value in (other.temperature, other.top_k, other.seed)} == {float, int}
    with pytest.raises(RequestError, match=r"seed is 1\.0; give a whole number"):
        Sampling(seed=np.float32(1))
    with pytest.raises(RequestError, match="top_k is True; give a whole number"):
        Sampling(top_k=np.bool_(True))


def test_one_may_be_given_for_many():
    assert Sampling(stop="dog").stop == Sampling(stop=["dog"]).stop == ("dog",)
    assert [Sampling(stop_token_ids=one).stop_token_ids for one in (5, 0)] == [(5,), (0,)]
    assert Sampling(bad_words=[[1, 2], np.array([3])]).bad_words == ((1, 2), (3,))
    with pytest.raises(RequestError, match=r"stop is \{.a.: 1\}; give a list"):
        Sampling(stop={"a": 1})
    with pytest.raises(RequestError, match="bad word has no tokens"):
        Sampling(bad_words=[1, 2])
    with pytest.raises(RequestError, match="logit_bias is 5; give a dictionary"):
        Sampling(logit_bias=5)


def test_a_text_ends_at_a_stop_that_is_one_text(llm):
    sampling = Sampling(temperature=0, max_tokens=12)
    whole = llm.generate("Once", sampling)[0].text
    stopped = llm.generate("Once", Sampling(temperature=0, max_tokens=12, stop="was"))[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole[: whole.index("was")]


def test_an_engine_is_given_few_of_many_prompts_at_a_time(monkeypatch):
    monkeypatch.setattr("forerun.llm.CROWD", 5)
    llm, seen = LLM("toy:0:5", drafter="none", max_requests=2), []
    step = llm.engine.step
    monkeypatch.setattr(llm.engine, "step", lambda: seen.append(len(llm.engine.requests)) or step())
    prompts, drawn = [[i % 5, i // 5] for i in range(23)], Sampling(max_tokens=4)
    samplings = [Sampling(max_tokens=1 + i % 7, seed=i) for i in range(23)]
    found = llm.generate(prompts, samplings)
    assert [result.prompt_tokens for result in found] == list(map(tuple, prompts))
    assert max(seen) == llm.crowd == 5
    alone = [llm.generate([prompt], one)[0].tokens for prompt, one in zip(prompts, samplings, strict=True)]
    assert tokens(found) == alone
    assert LLM("toy:0:5", drafter="none", max_requests=9).crowd == 18
    seen.clear()
    with pytest.raises(RequestError, match="token id 5 in the prompt does not exist"):
        llm.generate([*prompts, [5]], drawn)
    assert not seen  # nothing was written in vain
