"""What tokens write: bytes come back from their tokens, whatever the vocabulary, the place and the bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.models.spelling import Speller
from forerun.models.tokenizer import Tokenizer

SENTENCEPIECE = Path(__file__).resolve().parents[4] / "shared" / "data" / "models" / "stories260k-tok512"
TEXTS = ("Once upon a time", " two  spaces\n\n\tand a tab", "naïve 😀 日本語", "<|end|> is text", "x = {1: [2, 3]}\r\n")


@pytest.fixture(scope="module")
def byte_level():
    return Speller(Tokenizer.from_folder("reference"))


@pytest.fixture(scope="module")
def sentencepiece():
    if not SENTENCEPIECE.is_dir():
        pytest.skip("needs the stories260k model in ../shared/data/models")
    return Speller(Tokenizer.from_folder(SENTENCEPIECE))


@pytest.fixture(params=["byte_level", "sentencepiece"])
def speller(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(speller, text):
    data = text.encode()
    assert speller.spell(speller.encode(data)) == [data]
    assert speller.spell(speller.encode(data, first=True)) == [speller.lead + data]


@given(data=st.binary(min_size=1, max_size=12))
def test_any_bytes_come_back(byte_level, data):
    assert byte_level.spell(byte_level.encode(data)) == [data]


def test_a_word_within_a_text_gets_no_space_before_it(sentencepiece):
    assert sentencepiece.lead == b" "
    assert sentencepiece.spell(sentencepiece.encode(b"ing")) == [b"ing"]
    assert sentencepiece.encode(b" day") == sentencepiece.encode(b"day", first=True)


def test_a_letter_is_its_token_and_not_the_byte_for_what_has_none(sentencepiece):
    for letter in (b"a", b"T", b"."):
        assert [sentencepiece.ids[letter]] == sentencepiece.encode(letter)
    assert sentencepiece.pieces[3:259] == [bytes([byte]) for byte in range(256)]


def test_byte_level_pieces_are_what_the_tokens_write(byte_level):
    tokenizer = Tokenizer.from_folder("reference")
    for token, piece in enumerate(byte_level.pieces):
        text = piece if isinstance(piece, str) else piece.decode(errors="replace")
        assert tokenizer.token_text(token) == text


def test_special_tokens_are_names_and_split_the_text(byte_level):
    end = byte_level.ids["<|end|>"]
    ids = [*byte_level.encode(b"one two"), end, end, *byte_level.encode(b" three")]
    assert byte_level.spell(ids) == [b"one two", "<|end|>", "<|end|>", b" three"]
    assert b"<|end|>" not in byte_level.ids


def test_ids_that_no_token_has_write_nothing(byte_level):
    assert byte_level.spell([10**6, *byte_level.encode(b"a"), 10**6]) == [b"a"]


def test_what_a_vocabulary_cannot_write_is_left_out():
    toy = Speller(Tokenizer.from_folder("toy:0:a+b+ab"))
    assert toy.encode(b"a\xffbxab") == [0, 1, 2]
    assert toy.encode(b"abb", first=True) == [2, 1]
    assert (toy.lead, list(toy.begin)) == (b"", [])
