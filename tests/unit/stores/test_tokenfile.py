"""Files of token ids: what is written is read; whatever is unfit is one sentence with a remedy."""

import struct

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.models.spelling import Speller
from forerun.models.tokenizer import ToyTokenizer
from forerun.stores import tokenfile

ARRAYS = [np.arange(100, dtype=np.int32), np.zeros(0, np.int32), np.array([7, -1], np.int32)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.tokens"
    tokenfile.write(path, "kind", {"tokenizer": "mine", "more": 3}, ARRAYS, "do something")
    return path


def read(path, kind="kind", tokenizer="mine"):
    return tokenfile.read(path, kind, tokenizer, "do this")


def test_what_is_written_is_read(file):
    table, arrays = read(file)
    assert table["more"] == 3
    assert [array.tolist() for array in arrays] == [array.tolist() for array in ARRAYS]
    assert all(array.dtype == np.int32 for array in arrays)


def test_no_arrays_are_none(tmp_path):
    tokenfile.write(tmp_path / "a", "kind", {"tokenizer": "mine"}, [], "do something")
    assert read(tmp_path / "a")[1] == []


def version(data, number):
    return data[:8] + struct.pack("<Q", number) + data[16:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param(lambda data: data[:-4], "bytes and should have", id="cut"),
        pytest.param(lambda data: data[:30], "ends after 30 bytes", id="cut early"),
        pytest.param(lambda data: data + b"x", "bytes and should have", id="longer"),
        pytest.param(lambda _: b"", "is no file of tokens", id="empty"),
        pytest.param(lambda _: b"hello" * 40, "is no file of tokens", id="another file"),
        pytest.param(
            lambda data: version(data, 2),
            "has format version 2 and this forerun reads version 1; upgrade forerun, or",
            id="newer",
        ),
        pytest.param(lambda data: data[:-1] + b"\x7f", "are not those that were written", id="a changed array"),
        pytest.param(
            lambda data: data[:70] + b"?" + data[71:], "are not those that were written", id="a changed table"
        ),
    ],
)
def test_an_unfit_file_is_refused_and_stays(file, change, sentence):
    spoilt = change(file.read_bytes())
    file.write_bytes(spoilt)
    with pytest.raises(ConfigError, match=sentence) as problem:
        read(file)
    assert str(problem.value).endswith("do this.")
    assert file.read_bytes() == spoilt


def test_another_kind_another_tokenizer_and_no_file_are_refused(file):
    with pytest.raises(ConfigError, match="is a kind and no other; do this"):
        read(file, "other")
    with pytest.raises(ConfigError, match="was made with another tokenizer than this model's; do this"):
        read(file, tokenizer="yours")
    with pytest.raises(ConfigError, match="No such file or directory"):
        read(file.with_name("b"))


def test_tokenizers_have_different_marks():
    marks = {tokenfile.mark_of(Speller(ToyTokenizer(*words))) for words in (("a", "b"), ("b", "a"), ("a", "b", "c"))}
    assert len(marks) == 3
    assert tokenfile.mark_of(Speller(ToyTokenizer("a", "b"))) in marks
