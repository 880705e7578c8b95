"""`forerun bench quality`: the exact model loses nothing, fewer bits lose more, better whole numbers lose less.

The engines beside it are made up here: they run forerun itself, so that their figures are known.
"""

import sys

import pytest
import torch
from click.testing import CliRunner

from forerun.bench import quality
from forerun.bench.cli import command
from forerun.bench.engines import Peer
from forerun.errors import ConfigError, ModelError
from forerun.kernels import native
from forerun.quantize import Job, quantize

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
STORY = "Once upon a time there was a small dog who liked to run in the park with his friend Tom. "
ANSWER = "One day Tom found a red ball under a tree. He gave it to the dog, and they played until it was dark. "
ENGINE = """
from pathlib import Path
import numpy as np

class Engine:
    version = "7"

    def prepare(self, source, target, variant):
        Path(target, "made").write_text(source)

    def load(self, path, variant, threads):
        self.calls = 0
"""
SCORES = """
    def score(self, tokens, file):
        self.calls += 1
        np.save(file, np.zeros((len(tokens), 4096), np.float32))
"""
RUNS_FORERUN = """
    def load(self, path, variant, threads):
        from forerun.models.load import load_model
        source = Path(path, "made").read_text()
        self.model = load_model(source, {"Q8": "int8"}.get(variant, "auto"), threads=threads)

    def score(self, tokens, file):
        from forerun.quantize import one_pass
        np.save(file, one_pass(self.model, tokens, len(tokens)).numpy())
"""
STUMBLES = """
    def score(self, tokens, file):
        self.calls += 1
        if self.calls == 2:
            raise ValueError("a second window is beyond me")
        np.save(file, np.zeros((len(tokens), 4096), np.float32))
"""
SHORT = """
    def score(self, tokens, file):
        np.save(file, np.zeros((len(tokens) - 1, 4096), np.float32))
"""
NOT_FINITE = """
    def score(self, tokens, file):
        np.save(file, np.full((len(tokens), 4096), np.nan))
"""
DIES = """
    def score(self, tokens, file):
        import os
        os._exit(3)
"""
NO_FOUR = """
    def prepare(self, source, target, variant):
        if variant == "Q4":
            raise NotImplementedError("these widths are not known.")
"""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text((STORY + ANSWER) * 20)
    return path


@pytest.fixture
def run(text):
    def run(*flags):
        return CliRunner().invoke(command, ["quality", *map(str, flags), "--text", str(text), "--threads", "1"])

    return run


def test_fewer_bits_lose_more_and_calibrated_ones_less(run, last_line, tmp_path, text):
    other = tmp_path / "other.txt"
    other.write_text((ANSWER + STORY) * 10)
    folders = {name: tmp_path / name for name in ("eight", "mse", "calibrated")}
    jobs = Job("int8", "nearest"), Job("int4"), Job("int4", calibrate=(other,))
    for folder, job in zip(folders.values(), jobs, strict=True):
        quantize("reference", folder, job)
    result = run("reference", *folders.values(), "--tokens", 600, "--dtype", "int8,w8a8,int4")
    assert result.exit_code == 0, result.output
    report = last_line(result)
    cases = {case["name"].rpartition("/")[2]: case for case in report["cases"]}
    assert list(cases) == ["exact", "int8", "w8a8", "int4", *folders, "eight w8a8"]
    assert cases["exact"]["kl"] == 0
    assert cases["exact"]["same_token"] == 1
    assert 0 < cases["int8"]["kl"] < cases["int4"]["kl"] / 10
    assert cases["calibrated"]["kl"] < 0.8 * cases["mse"]["kl"]
    assert cases["mse"]["mib"] == cases["int4"]["mib"] < 0.65 * cases["int8"]["mib"]
    assert cases["int8"]["kl"] < cases["w8a8"]["kl"] < 3 * cases["int8"]["kl"]
    for packed, dtype in (("eight", "int8"), ("eight w8a8", "w8a8")):
        assert {**cases[packed], "name": ""} == {**cases[dtype], "name": ""}
    assert report["tokens"] == 600 - 1 - 1  # two windows, neither of which has its first token predicted
    assert "eight w8a8" in result.stdout.splitlines()[-3]


@pytest.fixture
def beside(tmp_path, text):
    """The report of the bundled model beside an engine made up here, which scores as it is told to."""

    def run(*parts, before="", dtypes=("int8",), python=sys.executable, **order):
        file = tmp_path / "engine.py"
        file.write_text("".join([before, ENGINE, *parts]))
        peer = Peer("other", str(file), "other-package", {"int8": ("Q8",), "int4": ("Q4 a",)})
        order = {"tokens": 700, "threads": 1, "pythons": {"other": python}, **order}
        return quality.run(quality.Order(["reference"], text, dtypes, **order), [peer])

    return run


def without(case, *names):
    return {name: value for name, value in case.items() if name not in names}


def test_an_engine_reads_the_same_windows(beside):
    report = beside(RUNS_FORERUN, dtypes=("int8", "int4"))
    cases = {case["name"]: case for case in report["cases"]}
    assert list(cases) == ["exact", "int8", "int4", "other Q8", "other Q4 a"]
    sizes = "name", "engine", "version", "mib", "bits"
    assert without(cases["other Q8"], *sizes) == without(cases["int8"], *sizes)
    assert without(cases["other Q4 a"], *sizes) == without(cases["exact"], *sizes)
    assert report["notes"] == []


def test_a_case_says_whose_it_is_and_how_large(beside):
    exact, int8, other = beside(SCORES)["cases"]
    assert exact["bits"] == pytest.approx(16, abs=0.02)  # gains of norms aside
    assert int8["bits"] / exact["bits"] == pytest.approx(int8["mib"] / exact["mib"], abs=0.001)
    assert (other["name"], other["engine"], other["version"]) == ("other Q8", "other", "7")
    assert other["mib"] == other["bits"] == 0  # its file holds the name of a folder
    assert other["perplexity"] == 4096  # it has no preference among as many tokens


FAILURES = {
    "stumbles": (STUMBLES, "ValueError: a second window is beyond me"),
    "short": (SHORT, "its logits are 510 x 4096, and 511 x 4096 finite ones were due"),
    "not finite": (NOT_FINITE, "its logits are 511 x 4096, and 511 x 4096 finite ones were due"),
    "dies": (DIES, "ended with code 3"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_an_engine_that_fails_is_left_out_and_the_others_go_on(beside, what):
    part, why = FAILURES[what]
    report = beside(part)
    assert [case["name"] for case in report["cases"]] == ["exact", "int8"]
    assert report["notes"] == [f"other Q8 was left out: {why}."]
    assert report["cases"] == beside(SCORES)["cases"][:2]


def test_a_variant_that_cannot_be_made_is_left_out(beside):
    report = beside(SCORES, NO_FOUR, dtypes=("int8", "int4"))
    assert [case["name"] for case in report["cases"]] == ["exact", "int8", "int4", "other Q8"]
    assert report["notes"] == ["other Q4 a was left out: these widths are not known."]


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ({}, "^other gives no logits of a whole text here; leave its --python out.$"),
        (
            {"before": "import no_such_package\n"},
            "^other cannot be asked: no module 'no_such_package' for .*; .*other-pack",
        ),
        ({"python": "no/such/python"}, "^other cannot be asked: no/such/python does not start .*; name an interpreter"),
        ({"dtypes": ("w8a8",)}, "^other has no weights of w8a8; name one of: int8, int4.$"),
        ({"pythons": {"othr": "python"}}, "^forerun bench quality has no engine 'othr'; did you mean 'other'"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_refused(beside, order, sentence):
    with pytest.raises(ConfigError, match=sentence):
        beside(**order)


def test_the_table_names_engines_their_versions_and_who_was_left_out(beside, capsys):
    quality.show(beside(SCORES, NO_FOUR, dtypes=("int8", "int4")))
    text = capsys.readouterr().out
    for words in ("other Q8", "other 7", "other Q4 a was left out: these widths are not known."):
        assert words in text


def test_the_command_takes_an_interpreter(run):
    assert "ENGINE=PATH" in run("reference", "--python", "venv/bin/python").output
    result = run("reference", "--python", f"openvino={sys.executable}", "--dtype", "int8", "--tokens", 20)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith("openvino ")


def test_what_keys_and_values_cost_is_measured_beside_each_precision(run, last_line):
    result = run("reference", "--dtype", "int8", "--kv-dtype", "bf16,int8", "--tokens", 300)
    assert result.exit_code == 0, result.output
    cases = {case["name"]: case["kl"] for case in last_line(result)["cases"]}
    assert list(cases) == [
        "exact",
        "int8",
        *(f"{name} kv={kv}" for name in ("exact", "int8") for kv in ("bf16", "int8")),
    ]
    assert 0 < cases["exact kv=bf16"] < cases["exact kv=int8"] < cases["int8"]
    assert cases["int8 kv=bf16"] == cases["int8"]


def test_figures_are_those_of_the_formulas():
    exact = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    other = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    tally = quality.Tally()
    tally.add(other, exact, torch.tensor([1, 0]))
    p, q = exact.softmax(-1), other.softmax(-1)
    found = tally.figures()
    assert found["perplexity"] == pytest.approx(float((-(q[0, 1].log() + q[1, 0].log()) / 2).exp()), abs=1e-3)
    assert found["kl"] == pytest.approx(float((p * (p / q).log()).sum() / 2), rel=1e-3)
    assert found["same_token"] == 0.5 + 0.5 * (exact[0].argmax() == other[0].argmax())


def test_what_cannot_be_compared_is_refused(folder, text, tmp_path):
    with pytest.raises(ConfigError, match="has another vocabulary than reference; name a folder"):
        quality.run(quality.Order(["reference", str(folder)], text, (), 100))
    with pytest.raises(ConfigError, match=r"cannot read '.*none' .*; name a text in UTF-8"):
        quality.run(quality.Order(["reference"], tmp_path / "none", (), 100))
    quantize("reference", tmp_path / "packed", Job("int8"))
    with pytest.raises(ModelError, match=r"packed has no weights; put model\.safetensors"):  # it is not the exact model
        quality.run(quality.Order([str(tmp_path / "packed")], text, (), 100))
    (tmp_path / "short").write_text("")
    with pytest.raises(ConfigError, match="too few to predict one; name a longer text"):
        quality.run(quality.Order(["reference"], tmp_path / "short", (), 100))
