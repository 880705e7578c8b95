"""One parser: what it knows it reads back, what it does not know it refuses with the nearest name."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import LLM
from forerun.config import Config, check_tokens, choose
from forerun.errors import ConfigError, RequestError
from forerun.registry import Registry
from forerun.types import Sampling


class Member:
    @dataclass(frozen=True)
    class Options:
        width: int = 3
        rate: float = 0.5
        quick: bool = False
        name: str = ""
        sizes: tuple[int, ...] = ()
        inner: str | None = None


class Table(Registry):
    def __getitem__(self, name):
        return Member if name in self.table else super().__getitem__(name)


TABLE = Table("drafter", __name__, {"mine": "mine:Member"})


@given(
    st.builds(
        Member.Options,
        width=st.integers(-9, 99),
        rate=st.floats(-10, 10),
        quick=st.booleans(),
        name=st.text("abc:=,[](){}/.", max_size=8).filter(
            lambda s: _balanced(s) and not (s[:1] == "(" and s[-1:] == ")")
        ),
        sizes=st.lists(st.integers(0, 9)).map(tuple),
        inner=st.one_of(st.none(), st.sampled_from(["ngram:width=2,min_match=1", "plain"])),
    )
)
def test_what_was_chosen_can_be_spelled_and_read_back(options):
    choice = choose(TABLE, "mine", {k: getattr(options, k) for k in options.__dataclass_fields__})
    assert choose(TABLE, choice.spelling).options == options


def _balanced(text):
    depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return False
    return depth == 0


REFUSED = [
    ("mien", "no drafter 'mien'; did you mean 'mine'"),
    ("mine:widht=4", "no option 'widht'; did you mean 'width'"),
    ("mine:width=four", "option 'width' is 'four'; give a value of type int"),
    ("mine:quick=maybe", "option 'quick' is 'maybe'"),
    ("mine:width", "write options as name=value"),
]


@pytest.mark.parametrize(("spelled", "sentence"), REFUSED)
def test_what_is_unknown_is_refused_with_the_nearest(spelled, sentence):
    with pytest.raises(ConfigError, match=sentence):
        choose(TABLE, spelled)


def test_keywords_that_config_does_not_know_are_options_of_the_drafter():
    config, rest = Config.parse(drafter="mine", width=7)
    assert choose(TABLE, config.drafter, rest).options.width == 7
    with pytest.raises(ConfigError, match="did you mean 'width'"):
        choose(TABLE, "mine", {"widht": 7})


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"max_requests": 0}, "give at least 1"),
        ({"max_requests": "many"}, "give a value of type int"),
        ({"dtype": "float23"}, "did you mean 'float32'"),
        ({"kv_dtype": "int4"}, "did you mean 'int8'"),
        ({"device": "gpu"}, "value of device 'gpu'"),
        ({"draft_timeout": -1.0}, "give at least 0"),
    ],
)
def test_config_refuses_what_cannot_be(keywords, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Config(**keywords)


def test_more_threads_than_cores_are_refused():
    with pytest.raises(ConfigError, match=r"threads is 4096 and this process may use \d+ .*: use threads=\d+, or 0"):
        LLM("toy:1", threads=4096)


PLACES = ["prompt", "bad_words", "logit_bias", "allowed_tokens", "stop_token_ids"]
NAMED = [(where, token) for where in PLACES for token in (-1, 8, 2**31, 1.5)]
NAMED += [(where, True) for where in PLACES if where != "logit_bias"]  # there True and 1 are one key


@pytest.mark.parametrize(("where", "token"), NAMED)
def test_tokens_that_do_not_exist_are_refused(where, token):
    named = {"bad_words": ((token,),), "logit_bias": {token: 1.0}}
    named |= {"allowed_tokens": (token,), "stop_token_ids": (token,)}
    sampling = Sampling(**{where: named[where]}) if where in named else Sampling()
    with pytest.raises(RequestError, match="does not exist"):
        check_tokens(sampling, [token] if where == "prompt" else [1], 8)


# A config file.


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "forerun.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_what_is_said_goes_before_the_file_and_that_before_defaults(file):
    path = file('# a comment\ndrafter = "ngram:width=3"\nmax_requests = 2\ndraft_timeout = 3\n')
    config, rest = Config.parse(config=path, max_requests=5, min_match=2)
    assert (config.drafter, config.max_requests, config.draft_timeout) == ("ngram:width=3", 5, 3)
    assert config.verifier == Config.verifier
    assert rest == {"min_match": 2}


def test_a_model_is_the_files_unless_one_is_named(file):
    path = file('model = "toy:1:5"\ndrafter = "none"\n')
    assert LLM(config=path).config.model == "toy:1:5"
    assert LLM("toy:2:5", config=str(path)).config.model == "toy:2:5"


WRONG_FILES = [
    ("draftr = 'ngram'", r"^config file '.*forerun\.toml' has no key 'draftr'; did you mean 'drafter'\? Keys: .*"),
    ("[sampling]\ntemperature = 0", "has no key 'sampling'"),
    ("drafter = ngram", r"is not TOML \(.*\); write lines such as drafter = \"ngram\"\.$"),
    (b"drafter = '\xff'", "is not UTF-8; save it as a text in UTF-8"),
    ("max_requests = 'two'", "max_requests is 'two'; give a value of type int"),
    ("max_requests = true", "max_requests is True; give a value of type int"),
    ("max_requests = 0", "max_requests is 0; give at least 1"),
    ("drafter = 3", "drafter is 3; give a value of type str"),
    ("dtype = 'int7'", "has no value of dtype 'int7'"),
]


@pytest.mark.parametrize(("content", "sentence"), WRONG_FILES)
def test_a_file_that_cannot_be_meant_is_refused_in_a_sentence(file, content, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Config.parse(config=file(content))


def test_a_file_that_is_not_there_is_said(tmp_path):
    sentence = r"^config file '.*none\.toml' cannot be read \(No such file or directory\); name one that is there\.$"
    with pytest.raises(ConfigError, match=sentence):
        Config.parse(config=tmp_path / "none.toml")
