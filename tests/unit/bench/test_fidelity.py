"""`forerun bench fidelity`: every method that is not exact has a row, and the figures are those of the definitions."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from forerun.bench import fidelity
from forerun.bench.cli import command
from forerun.bench.workloads import Item
from forerun.build import FAMILIES
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.types import Need

NOTHING = "typical:epsilon=1.0,delta=99.0"  # accepts no token, which is plain decoding


@pytest.fixture(scope="module")
def report():
    flags = ["--categories", "story", "--prompts", "2", "--samples", "2", "--max-tokens", "12", "--threads", "1"]
    flags += ["--planner", "fixed"]
    done = CliRunner().invoke(command, ["fidelity", *flags, "--setting", NOTHING, "--drafter", "draft-model:depth=3"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def cases(report):
    return {case["name"]: case for case in report["cases"]}


def left_out(report):
    """Those of which a note says why they are not there."""
    return {note.split(" ", 1)[0] for note in report["notes"] if " was left out: " in note}


def test_every_method_that_is_not_exact_is_there(report, cases):
    tables = [FAMILIES[family] for family in fidelity.JUDGES]
    wanted = {name for table in tables for name in table if not table[name].facts.exact}
    assert not left_out(report)
    assert wanted
    assert cases.keys() == wanted | {NOTHING, fidelity.PLAIN, fidelity.EXACT}
    assert report["drafter"] == "draft-model:depth=3"
    for name in wanted:
        free = name == "asap-gad"  # the model's own law, where no constraint holds the text
        assert cases[name]["distance"] < 1e-9 if free else cases[name]["distance"] > 1e-3
        assert (cases[name]["law"] is not None) == (cases[name]["family"] == "decoder")


def test_what_is_exact_loses_nothing(cases):
    for name in (fidelity.PLAIN, fidelity.EXACT, NOTHING):
        assert cases[name]["distance"] < 1e-9
        assert cases[name]["chosen"] == cases[name]["same_text"] == 1
    assert cases[fidelity.PLAIN]["difference"] == cases[NOTHING]["difference"] == {"mean": 0, "error": 0}
    assert cases[fidelity.EXACT]["over_exact"] == {"greedy": 1, "drawn": 1}
    assert cases[fidelity.PLAIN]["steps"] == cases[NOTHING]["steps"] == {"greedy": 1, "drawn": 1}


def test_what_is_not_exact_gains_steps_and_loses_choices(cases):
    relaxed, exact = cases["relaxed"], cases[fidelity.EXACT]
    assert relaxed["steps"]["greedy"] > exact["steps"]["greedy"]
    assert relaxed["chosen"] < 1
    ratio = relaxed["steps"]["greedy"] / exact["steps"]["greedy"]
    assert relaxed["over_exact"]["greedy"] == pytest.approx(ratio, abs=1e-3)
    assert relaxed["categories"]["story"]["chosen"] == relaxed["chosen"]


def test_a_text_is_scored_by_the_models_own_table():
    model, prompt, plain = ToyModel(3, 4), (0, 1), (2, 2, 0)
    texts = [(2, 0, 1), plain]
    items = [Item("story", 1, prompt)]
    results = [SimpleNamespace(prompt_tokens=prompt, tokens=text) for text in texts]
    best = [SimpleNamespace(tokens=plain)] * 2
    scores = fidelity._scores(model, items, results, best)
    for text, score in zip(texts, scores, strict=True):
        rows = [model.probs((*prompt, *text[:i])) for i in range(3)]
        assert score.loglik == pytest.approx(sum(math.log(row[t]) for row, t in zip(rows, text, strict=True)) / 3)
        entropies = [-sum(x * math.log(x) for x in row) for row in rows]
        assert score.surplus == pytest.approx(3 * score.loglik + sum(entropies))
        assert score.chosen == pytest.approx(sum(row.argmax() == t for row, t in zip(rows, text, strict=True)) / 3)
    assert [score.same for score in scores] == [pytest.approx(1 / 3), 1]


def test_intervals_are_those_of_prompts():
    def of(logliks, surplus=(0,) * 6):
        pairs = zip(logliks, surplus, strict=True)
        return [fidelity.Score("story", i // 2, 1, 1, value, more, 5 + i) for i, (value, more) in enumerate(pairs)]

    drawn = of([-1, -3, -2, -2, -4, -2], (3, -3, 2, 1, 0, 12))
    found = fidelity._figures(of([0] * 6), drawn, of([-2] * 6))
    assert found["loglik"] == pytest.approx(-7 / 3, abs=1e-4)
    third = 1.96 * (1 / 3) ** 0.5 / 3**0.5  # prompts: 0, 0, -1
    assert found["difference"] == pytest.approx({"mean": -1 / 3, "error": third}, abs=1e-4)
    assert found["surplus"]["mean"] == pytest.approx(15 / 45, abs=1e-4)  # nats of all texts over their tokens
    alone = fidelity._figures(of([0] * 6), drawn[:2], drawn[:2])
    assert alone["surplus"] == {"mean": 0, "error": None}
    assert fidelity.shown(alone["surplus"]) == "+0.000 ± –"


def test_the_surplus_of_the_models_own_samples_is_nothing():
    model, prompt = ToyModel(3, 4), (0, 1)
    rng, texts = np.random.default_rng(0), []
    for _ in range(400):
        text = prompt
        while len(text) < 6:
            text = (*text, int(rng.choice(3, p=model.probs(text))))
        texts.append(SimpleNamespace(prompt_tokens=prompt, tokens=text[2:]))
    scores = fidelity._scores(model, [Item("story", i, prompt) for i in range(400)], texts, None)
    surplus = fidelity._figures(scores, scores, scores)["surplus"]
    assert abs(surplus["mean"]) < 1.5 * surplus["error"] < 0.1


def test_a_method_that_the_model_cannot_have_is_left_out_with_its_sentence(data):
    flags = ["--data", str(data), "--categories", "humaneval", "--model", "toy:0:5", "--drafter", "ngram"]
    done = CliRunner().invoke(
        command, ["fidelity", *flags, "--max-tokens", "4", "--samples", "1", "--planner", "fixed"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert any("fs-gen was left out" in note and "names none" in note for note in found["notes"])
    assert any("judge was left out" in note and "train one" in note for note in found["notes"])
    table = FAMILIES["decoder"]
    alone = {n for n in table if not table[n].facts.exact and Need.SECOND_MODEL not in table[n].facts.needs}
    there = {case["name"] for case in found["cases"] if case["family"] == "decoder"}
    assert there == alone


def test_an_exact_or_unknown_setting_is_refused():
    for spelled in ("rejection", "typcal:epsilon=0.2"):
        with pytest.raises(ConfigError, match="no method"):
            fidelity.lossy([spelled])
    with pytest.raises(ConfigError, match="from 0 to 1"):
        fidelity.lossy(["typical:epsilon=2"])
    assert [c.spelling for c in fidelity.lossy(["bild:rollback=2.0"])].count("bild:rollback=2.0") == 1
