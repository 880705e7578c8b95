"""DReSD: a model reads the texts, and a draft is what followed where its state was most alike."""

import builtins
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from forerun.build import setup_for
from forerun.cli import program
from forerun.config import Config
from forerun.datastore import make, make_dense, windows
from forerun.drafters.dresd import DresdDrafter
from forerun.errors import ConfigError
from forerun.kernels.suffixes import END
from forerun.models.tokenizer import Tokenizer
from forerun.models.toy import toy_by_name
from forerun.rng import CounterRng
from forerun.stores import tokenfile
from forerun.stores.corpus import KIND as PLAIN
from forerun.stores.dense import KIND, LAYER, fit, open_dense
from forerun.types import Context, Draft, Outcome, Output, Sampling, Verdict, Work

NAME = "toy:0:6"
MODEL = toy_by_name(NAME)
SETUP = setup_for(Config(), MODEL)


def tokens(text):
    return Tokenizer.from_folder(NAME).encode(text)


def state(before, last):
    """What the toy's layer makes of its last two tokens."""
    return MODEL._features(torch.tensor([[tokens(before)[0], tokens(last)[0]]]))[0]


@pytest.fixture
def store(tmp_path):
    texts = {"a": "fabcde" * 3, "b": "eacfff" * 3}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    make_dense([tmp_path / name for name in texts], NAME, tmp_path / "store")
    return tmp_path / "store"


def asked(drafter, text, states):
    """A request whose last pass read these states, the last of which its last token was drawn from."""
    context = Context(0, tokens(text), 1, Sampling(), CounterRng(0))
    context = replace(context, state=drafter.start(context))
    assert drafter.propose([context], [8]) == [Draft()]
    work = Work(0, tuple(range(len(states))), hidden=(LAYER,))
    output = Output(torch.empty(1, 6), (), (), hidden={LAYER: torch.stack(states)})
    drafter.observe([context], [Outcome(work, output, Draft(), Verdict((), context.tokens[-1]))])
    return context


def drafter(store, **options):
    return DresdDrafter(DresdDrafter.Options(store=str(store), **options), SETUP)


def test_what_followed_the_nearest_states_is_drafted(store):
    one = drafter(store, matches=4)
    for before, last, new, after in (("f", "a", "b", "cdef"), ("e", "a", "c", "fffe")):
        draft = one.propose([asked(one, f"{before}{last}{new}", [state("b", "b"), state(before, last)])], [4])[0]
        assert draft.tokens == tuple(tokens(after))
        assert draft.parents == (-1, 0, 1, 2)
    assert draft.source == "dresd"


def test_who_went_on_with_another_token_has_no_vote(store):
    one = drafter(store, matches=3)
    assert one.propose([asked(one, "fad", [state("f", "a")])], [4]) == [Draft()]


def test_the_state_of_the_last_accepted_node_counts(store):
    one = drafter(store, matches=4)
    context = asked(one, "fa", [state("c", "c")])
    work = Work(0, tuple(tokens("abd")), (-1, 0, 0), hidden=(LAYER,))
    states = torch.stack([state("f", "a"), state("c", "d"), state("a", "b")])
    outcome = Outcome(work, Output(torch.empty(1, 6), (), (), hidden={LAYER: states}), Draft((1, 3), (-1, -1)))
    one.observe([context], [outcome])  # not judged yet
    assert context.state.state.tolist() == state("c", "c").tolist()
    one.observe([context], [outcome._replace(verdict=Verdict((1,), 2))])
    assert context.state.state.tolist() == state("a", "b").tolist()
    one.observe([context], [outcome._replace(verdict=Verdict((), 2))])
    assert context.state.state.tolist() == state("f", "a").tolist()


def test_a_projection_tells_directions_apart_and_not_lengths():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(500, 8)) * [9, 1, 1, 1, 1, 1, 1, 0] + 3
    short = fit(states, 3)(states)
    assert short.shape == (500, 3)
    assert np.linalg.norm(short, axis=1) == pytest.approx(1)
    assert np.abs(short.mean(0)).max() < 0.1


def test_windows_cross_no_document():
    text = np.array([1, 2, 3, 4, 5, END, 6, END, 7, 8, END], np.int32)
    assert list(windows(text, 2)) == [(0, 2), (2, 4), (4, 5), (6, 7), (8, 10)]


def test_the_command_builds_it(tmp_path):
    (tmp_path / "text").write_text("fabcde" * 3)
    command = ["datastore", "build", str(tmp_path / "text"), "--model", NAME, "--out", str(tmp_path / "out"), "--dense"]
    result = CliRunner().invoke(program, command)
    assert result.exit_code == 0, result.output
    assert '{"documents": 1, "tokens": 18' in result.output
    assert len(open_dense(str(tmp_path / "out"), SETUP, "who").tokens) == 19


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        pytest.param(lambda data: data[:-4], "should have", id="cut"),
        pytest.param(lambda data: data[:8] + b"\2" + data[9:], "format version 2", id="newer"),
        pytest.param(lambda data: data[:-1] + b"!", "not those that were written", id="changed"),
        pytest.param(lambda _: b"text", "no file of tokens", id="text"),
    ],
)
def test_an_unfit_file_is_refused(store, spoil, sentence):
    store.write_bytes(spoil(store.read_bytes()))
    with pytest.raises(ConfigError, match=f"{sentence}.*forerun datastore build --dense"):
        drafter(store)


def test_one_of_another_tokenizer_model_or_kind_is_refused(store, tmp_path):
    make([tmp_path / "a"], NAME, tmp_path / "plain")
    with pytest.raises(ConfigError, match=f"is a {PLAIN} and no {KIND}; make one for this model"):
        drafter(tmp_path / "plain")
    with pytest.raises(ConfigError, match="has states of 13 numbers and this model's have 5; make one"):
        DresdDrafter(DresdDrafter.Options(store=str(store)), replace(SETUP, hidden_size=5))
    tokenfile.write(tmp_path / "other", KIND, {"tokenizer": "another"}, [np.zeros(1, np.int32)] * 4, "")
    with pytest.raises(ConfigError, match="another tokenizer than this model's; make one"):
        drafter(tmp_path / "other")
    with pytest.raises(ConfigError, match="drafter 'dresd' needs a dense datastore and none is named; make one"):
        drafter("")


def test_a_failed_build_leaves_the_old_one(store, tmp_path):
    old = store.read_bytes()
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes(b"ab\xe9")
    for name, sentence in (("none", "No such file"), ("empty", "hold no text"), ("latin", "is not UTF-8")):
        with pytest.raises(ConfigError, match=sentence):
            make_dense([tmp_path / name], NAME, store)
    assert store.read_bytes() == old


def test_without_the_library_a_sentence_names_the_extra(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("usearch"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "text").write_text("abc")
    with pytest.raises(ConfigError, match=r"need usearch.*; pip install 'forerun\[dense\]', or use drafter='rest'"):
        make_dense([tmp_path / "text"], NAME, tmp_path / "out")
    assert not (tmp_path / "out").exists()
