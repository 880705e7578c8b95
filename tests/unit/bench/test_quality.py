"""`forerun bench quality`: the exact model loses nothing, fewer bits lose more, better whole numbers lose less."""

import pytest
import torch
from click.testing import CliRunner

from forerun.bench import quality
from forerun.bench.cli import command
from forerun.errors import ConfigError
from forerun.kernels import native
from forerun.quantize import Job, quantize

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
STORY = "Once upon a time there was a small dog who liked to run in the park with his friend Tom. "
ANSWER = "One day Tom found a red ball under a tree. He gave it to the dog, and they played until it was dark. "


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
    jobs = Job("int8"), Job("int4", "mse"), Job("int4", "mse", (other,))
    for folder, job in zip(folders.values(), jobs, strict=True):
        quantize("reference", folder, job)
    result = run("reference", *folders.values(), "--tokens", 600)
    assert result.exit_code == 0, result.output
    report = last_line(result)
    cases = {case["name"].rpartition("/")[2]: case for case in report["cases"]}
    assert list(cases) == ["exact", "int8", "int4", *folders]
    assert cases["exact"]["kl"] == 0
    assert cases["exact"]["same_token"] == 1
    assert 0 < cases["int8"]["kl"] < cases["int4"]["kl"] / 10
    assert cases["calibrated"]["kl"] < 0.8 * cases["mse"]["kl"]
    assert cases["mse"]["mib"] == cases["int4"]["mib"] < 0.65 * cases["int8"]["mib"]
    assert {**cases["eight"], "name": ""} == {**cases["int8"], "name": ""}
    assert report["tokens"] == 600 - 1 - 1  # two windows, neither of which has its first token predicted
    assert "calibrated" in result.stdout.splitlines()[-3]


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
    (tmp_path / "short").write_text("")
    with pytest.raises(ConfigError, match="too few to predict one; name a longer text"):
        quality.run(quality.Order(["reference"], tmp_path / "short", (), 100))
