"""The tokenizer loses nothing, splits digits, and reads the names of special tokens as text when told to."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from forerun.errors import TrainError
from forerun.train import tokenizer

EXAMPLES = settings.default.max_examples  # 100; more with --hypothesis-profile thorough
NASTY = st.sampled_from(["<|end|>", "<|user|>", " ", "\n\n", "\t", "007", "é", "日本", "\x00", "😀", "x<|endoftext|>"])


@given(st.lists(st.text() | NASTY).map("".join))
@settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_decode_of_encode_is_the_text(words, text):
    for reader in (words, tokenizer.plain(words)):
        assert reader.decode(reader.encode(text).ids, skip_special_tokens=False) == text


def test_plain_reading_never_gives_a_special_token(words):
    ids = tokenizer.plain(words).encode("a <|end|> b <|endoftext|>").ids
    assert not set(ids) & set(range(len(tokenizer.SPECIAL)))
    assert words.encode("a<|end|>").ids[-1] == words.token_to_id("<|end|>")


def test_end_of_text_is_token_zero(words):
    assert words.token_to_id("<|endoftext|>") == 0


def test_every_digit_stands_alone(words):
    assert [words.decode([i]) for i in words.encode("2026").ids] == ["2", "0", "2", "6"]


def test_folder_loads_in_transformers_and_formats_chats(words, tmp_path):
    tokenizer.write(words, tmp_path, 64)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded("the dog 12").input_ids == words.encode("the dog 12").ids
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "tool", "content": "3"},
    ]
    text = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>Hi<|end|><|assistant|>Yes<|end|><|user|>3<|end|><|assistant|>"
    assert loaded.decode(loaded("a  b\n c .").input_ids) == "a  b\n c ."
    assert loaded.eos_token_id == loaded.bos_token_id == 0


def test_too_little_text_is_said():
    with pytest.raises(TrainError, match="ask for a smaller vocab_size"):
        tokenizer.train(["ab"], 5000)


def test_folder_without_tokenizer_is_said(tmp_path):
    with pytest.raises(TrainError, match=r"no tokenizer\.json"):
        tokenizer.load(tmp_path)


def test_missing_special_token_is_said(words):
    with pytest.raises(TrainError, match="has no token"):
        tokenizer.special_id(words, "<|tool|>")
