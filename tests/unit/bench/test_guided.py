"""What constraints and searches bring: the judges are right, and every method is measured where it has an effect."""

import json

import pytest

from forerun import LLM
from forerun.bench import constrained, guided, searched
from forerun.bench.report import as_json
from forerun.models.toy import ToyModel
from forerun.testing.reference import Reference
from forerun.types import Sampling

SMALL = guided.Order(
    constrained.Order(samples=2, max_tokens=32, languages=("sql",)),
    searched.Order(prompts=1, room=12, past=(0, 24), toys=1, phrases=(("dog",),), length=12),
)


@pytest.fixture(scope="module")
def report():
    return guided.run(SMALL)


def test_every_method_changes_its_figure(report):
    figures = {(case["method"], case["figure"]): (case["without"], case["within"]) for case in report["cases"]}
    for (method, figure), (without, within) in figures.items():
        if "share" in figure and "came" not in figure:
            assert within >= without, (method, figure)
    assert figures["deny-labels", "denied phrases per 1,000 tokens"][0] > 0
    assert figures["deny-labels", "denied phrases per 1,000 tokens"][1] == 0
    assert figures["monitors", "share of attributes that exist"][1] == 1
    greedy, exact = figures["exact-extract", "log-likelihood of the span"]
    assert exact > greedy
    assert figures["exact-extract", "share that is the best of all"][1] == 1
    assert figures["dynamic-beam-allocation", "share of phrases that occur"][1] == 1
    far = [case["within"] for case in report["cases"] if case["method"] == "asap-gad"]
    assert far[0] > 0.01
    assert far[1] < 1e-9
    told = json.loads(as_json(report))
    assert told["benchmark"] == "guided"
    guided.show(told)


@pytest.mark.parametrize(
    ("language", "right", "wrong"),
    [
        ("json", '{"a": [1]}', '{"a": [1}'),
        ("python", "def f(x):\n    return x\n", "def f(x):\nreturn x\n"),
        ("sql", "SELECT a FROM b WHERE c = 1;", "SELECT a FROM b WHERE c = ;"),
        ("sql", "SELECT a FROM b", "SELECT a FROM b; SELECT c FROM d"),
    ],
)
def test_parsers_are_those_of_the_languages(language, right, wrong):
    assert constrained.PARSERS[language](right)
    assert not constrained.PARSERS[language](wrong)


def test_spans_have_the_probabilities_of_texts():
    """Each span and its end, against the law of everything that the model may write."""
    model, prompt = ToyModel(4, 1, eos=(3,)), (0, 1, 2, 0, 1)
    law = Reference(model).law(prompt, Sampling(max_tokens=6), 6)
    found = searched.scored(model, prompt)
    assert set(found) == {prompt[i:j] for i in range(5) for j in range(i + 1, 6)}
    for span, likely in found.items():
        assert 2.718281828459045**likely.whole == pytest.approx(law[*span, 3])
    begun = {1: -1.0, 2: -2.0}
    table = {(1,): searched.Span(begun[1], -3.0), (2,): searched.Span(begun[2], -2.1), (1, 2): searched.Span(-2.9, -9)}
    assert searched.chosen(table) == (1, 2)
    assert searched.chosen({**table, (1,): searched.Span(-1.0, -2.8)}) == (1,)


def test_a_monitor_knows_the_names_of_a_class():
    monitor = constrained.attributes(("name", "no"))
    assert {".name", ".no", " "} < set(monitor(""))
    assert monitor(".n") == ["ame", "o"]
    assert monitor(".name + x") is None
    assert {".name", "("} < set(monitor(".no + self"))
    assert monitor(".no + self.na") == ["me"]
    assert set(monitor(".no + self.no")) == {*constrained.AFTER, ""}


def test_languages_have_prompts_and_parsers():
    assert constrained.LANGUAGES.keys() == constrained.PARSERS.keys()
    llm = LLM(**constrained.PLAIN)
    (pair,) = [constrained.measure(llm, constrained.Order(samples=1, max_tokens=4, languages=()))]
    assert {beside.method for beside in pair} == {"monitors", "deny-labels"}
