"""REST: a datastore is built from files, mapped, and continued; whatever is unfit is refused in a sentence."""

import numpy as np
import pytest
from click.testing import CliRunner

from forerun.build import setup_for
from forerun.cli import program
from forerun.config import Config
from forerun.datastore import make
from forerun.drafters.rest import RestDrafter
from forerun.errors import ConfigError, ForerunError
from forerun.models.tokenizer import Tokenizer
from forerun.models.toy import toy_by_name
from forerun.rng import CounterRng
from forerun.stores import tokenfile
from forerun.stores.corpus import KIND
from forerun.types import Context, Sampling

NAME = "toy:0:6"
SETUP = setup_for(Config(), toy_by_name(NAME))


def tokens(text):
    return Tokenizer.from_folder(NAME).encode(text)


def datastore(folder, *texts):
    files = [folder / f"{i}.txt" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    make(files, NAME, folder / "store")
    return str(folder / "store")


def draft(store, text, budget=64, **options):
    drafter = RestDrafter(RestDrafter.Options(store=store, **options), SETUP)
    return drafter.propose_one(Context(0, tokens(text), 1, Sampling(), CounterRng(0)), budget)


def spelled(made):
    """Every path of a draft, as text."""
    paths = []
    for token, parent in zip(made.tokens, made.parents, strict=True):
        paths.append((paths[parent] if parent >= 0 else "") + Tokenizer.from_folder(NAME).decode([token]))
    return paths


def test_the_most_frequent_prefixes_follow_the_longest_suffix(tmp_path):
    store = datastore(tmp_path, "abcd", "abce", "abcd", "ffcb", "abcda")
    made = draft(store, "eabc")
    assert spelled(made) == ["d", "e", "da"]
    assert made.confidence == pytest.approx((3 / 4, 1 / 4, 1 / 3))
    assert spelled(draft(store, "eabc", budget=2)) == ["d", "e"]
    assert spelled(draft(store, "eabc", nodes=1)) == ["d"]
    assert spelled(draft(store, "eabc", least=0.3)) == ["d"]


def test_nothing_is_continued_across_documents(tmp_path):
    store = datastore(tmp_path, "ab", "cd")
    assert spelled(draft(store, "ab")) == []
    assert spelled(draft(store, "bc", shortest=2)) == []
    assert spelled(draft(store, "bc", shortest=1)) == ["d"]


def test_a_short_match_is_none(tmp_path):
    assert len(draft(datastore(tmp_path, "abcdef"), "fc")) == 0


def test_the_command_builds_what_the_drafter_reads(tmp_path):
    (tmp_path / "text").write_text("abcdef")
    command = ["datastore", "build", str(tmp_path / "text"), "--model", NAME, "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(program, command)
    assert result.exit_code == 0, result.output
    assert '{"documents": 1, "tokens": 6' in result.output
    assert spelled(draft(str(tmp_path / "out"), "bc")) == ["d", "de", "def"]


def test_files_that_hold_no_text_are_refused(tmp_path):
    (tmp_path / "latin").write_bytes(b"ab\xe9")
    (tmp_path / "empty").write_text("")
    with pytest.raises(ConfigError, match=r"is not UTF-8 \(at byte 2\); convert it"):
        make([tmp_path / "latin"], NAME, tmp_path / "out")
    with pytest.raises(ConfigError, match="hold no text, so there is nothing to retrieve; name at least one that does"):
        make([tmp_path / "empty"], NAME, tmp_path / "out")
    with pytest.raises(ConfigError, match="No such file"):
        make([tmp_path / "none"], NAME, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failed_build_leaves_the_old_one(tmp_path):
    old = (tmp_path / datastore(tmp_path, "abc")).read_bytes()
    (tmp_path / "latin").write_bytes(b"ab\xe9")
    (tmp_path / "empty").write_text("")
    for name in ("none", "latin", "empty"):
        with pytest.raises(ConfigError):
            make([tmp_path / name], NAME, tmp_path / "store")
        assert (tmp_path / "store").read_bytes() == old


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        pytest.param(lambda data: data[:-4], "should have", id="cut"),
        pytest.param(lambda data: data[:8] + b"\2" + data[9:], "format version 2", id="newer"),
        pytest.param(lambda _: b"text", "no file of tokens", id="text"),
    ],
)
def test_an_unfit_datastore_is_refused(tmp_path, spoil, sentence):
    store = datastore(tmp_path, "abc")
    (tmp_path / "store").write_bytes(spoil((tmp_path / "store").read_bytes()))
    with pytest.raises(ConfigError, match=f"{sentence}.*forerun datastore build"):
        draft(store, "ab")


def test_a_datastore_of_another_tokenizer_or_kind_is_refused(tmp_path):
    for name, kind, mark in (("a", KIND, "another"), ("b", "draft store", "")):
        tokenfile.write(tmp_path / name, kind, {"tokenizer": mark}, [np.zeros(1, np.int32)] * 2, "")
    with pytest.raises(ConfigError, match="another tokenizer than this model's; make one for this model"):
        draft(str(tmp_path / "a"), "ab")
    with pytest.raises(ConfigError, match="is a draft store and no datastore"):
        draft(str(tmp_path / "b"), "ab")
    for name in ("toy:a", "toy:", "toy:0:3:4"):
        with pytest.raises(ConfigError, match=f"'{name}' is no toy datastore; write toy:SEED"):
            draft(name, "ab")
    with pytest.raises(ForerunError, match="drafter 'rest' needs a datastore and none is named; make one"):
        draft("", "ab")
