"""Planners on recorded drafts: they bring what an engine has of the same drafts, and what no clock disturbs."""

import json

import numpy as np
import pytest

from forerun.bench import rehearse, workloads
from forerun.bench.report import as_json
from forerun.engine.stats import RequestStats
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.types import Draft, Sampling

TOKENS = 24


def report_of(drafter="draft-model", temperature=0.0, **changes):
    own = {"categories": ["story", "code"], "prompts": 4, "repeats": 2, "answers": 24, "requests": (1, 8), **changes}
    sampling = {"max_tokens": TOKENS, "temperature": temperature}
    return rehearse.run(rehearse.Order(**own), {"threads": 1, "drafter": drafter}, sampling)


def cases_of(report):
    return {(case["requests"], case["planner"]): case for case in report["cases"]}


def test_the_same_command_brings_the_same_figures():
    settings = "fixed:nodes=4", "auto"
    first, again = (report_of(settings=settings) for _ in range(2))
    assert first["cases"] == again["cases"]
    cases = cases_of(first)
    for clients in (1, 8):
        assert cases[clients, rehearse.PLAIN]["over_plain"]["value"] == 1
        assert cases[clients, rehearse.PLAIN]["drafted_share"] == 0
        assert cases[clients, "fixed:nodes=4"]["drafted_share"] > 0.9
    assert cases[1, "fixed:nodes=4"]["over_plain"]["value"] > 1.1 > cases[8, "fixed:nodes=4"]["over_plain"]["value"]
    assert cases[1, "fixed:nodes=4"]["tokens_per_step"] > 1.5
    assert json.loads(as_json(first))["benchmark"] == "rehearse"
    rehearse.show(first)


def test_drafts_bring_what_they_bring_in_an_engine():
    """Whose drafts are made for what is asked; recorded ones are cut to that."""
    setting = "fixed:nodes=3,bar=0.5"
    played = cases_of(report_of(requests=(1,), settings=(setting,), answers=200, repeats=1))[1, setting]
    llm = LLM(drafter="draft-model", planner=setting, threads=1)
    sampling = Sampling(temperature=0.0, max_tokens=TOKENS)
    for item in workloads.encode(workloads.load(["story", "code"], 4), llm.tokenizer, 500).items:
        llm.engine.add(item.tokens, sampling)
    found = list[RequestStats]()
    while llm.engine.busy:
        found += [event.stats for event in llm.engine.step() if event.stats is not None]
    tokens, steps = sum(one.tokens for one in found), sum(one.steps for one in found)
    assert played["tokens_per_step"] == pytest.approx(tokens / steps, rel=0.08)


def test_rows_that_cost_nothing_are_worth_more():
    dear, cheap = (
        cases_of(report_of(requests=(1,), settings=("fixed:nodes=8",), clock=clock))[1, "fixed:nodes=8"]
        for clock in ("dear", "cheap")
    )
    assert cheap["tokens_per_step"] == dear["tokens_per_step"]
    assert cheap["over_plain"]["value"] > 1.3 * dear["over_plain"]["value"]


def test_where_no_draft_comes_true_drafts_only_cost():
    cases = cases_of(report_of(settings=("fixed:nodes=4", "auto"), wrong=True, answers=100))
    for clients in (1, 8):
        assert cases[clients, "fixed:nodes=4"]["tokens_per_step"] <= 1
        assert cases[clients, "fixed:nodes=4"]["over_plain"]["value"] < 0.7
        assert 0.97 < cases[clients, "auto"]["over_plain"]["value"] < 1


def test_planners_see_noise_and_what_counts_is_without():
    quiet, loud = (report_of(requests=(1,), settings=("fixed:nodes=2",), noise=noise)["cases"] for noise in (0, 3))
    assert quiet == loud
    noise = rehearse.Noise(np.random.default_rng(0), 1.0)
    factors = [next(noise.of(0.001)) for _ in range(4000)]
    assert 0.9 < sum(factors) / len(factors) < 1.1
    assert max(factors) > 1.4
    assert {next(rehearse.Noise(np.random.default_rng(0), 0.0).of(1.0))} == {1.0}


def test_a_step_takes_what_its_clock_says():
    clock = rehearse.Clock((1, 2, 4), (100, 200, 400), 10, 5, 20, 3, 40, 4, 2, 1)
    assert clock.running(3, 4, 2) == pytest.approx(1e-6 * (400 + 30 + 10))
    assert clock.around(3) == pytest.approx(29e-6)
    assert clock.drafting(2, 3, 7) == pytest.approx(1e-6 * (2 * 2 + 48 * 3 + 7))
    assert clock.drafting(0, 0, 0) == 0


@pytest.mark.parametrize(("drafts", "written"), [([5, 6, 7], 4), ([5, 9, 7], 2), ([9], 1), ([5, 6, 7, 8, 1, 2], 5)])
def test_a_turn_is_what_was_guessed_and_one_more_as_far_as_the_text_goes(drafts, written):
    text = rehearse.Text(3, (5, 6, 7, 8, 1), [Draft.chain(drafts)] * 5)
    played = rehearse.Rehearsal(None, None, None, None)
    tokens = [0] * 3
    client = rehearse.Client(rehearse.Context(0, tokens, 3, Sampling(), None), tokens, text, pending=3)
    turn = played._turn(client, text.drafts[0])
    assert len(turn.emissions) == client.written == written
    assert turn.keep == (0, 1, 2, *(3 + node for node in range(written - 1)))
    assert len(tokens) == 3 + written


def test_drafters_that_read_the_text_alone_are_recorded_too():
    cases = cases_of(report_of("ngram", requests=(1,), settings=("fixed:nodes=4",), answers=50))
    assert cases[1, "fixed:nodes=4"]["tokens_per_step"] > 1.02


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"clock": "slow"}, "dear"),
        ({"settings": ("atuo",)}, "atuo"),
        ({"temperature": 1.0}, "temperature"),
        ({"drafter": "none"}, "from texts alone"),
        ({"drafter": "bandit"}, "from texts alone"),
    ],
)
def test_what_cannot_be_played_is_refused(changes, word):
    with pytest.raises(ConfigError, match=word):
        report_of(**changes)
