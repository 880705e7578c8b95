"""Predictions come from counted passes and a cost curve; both are held against made-up ones."""

from dataclasses import replace

import pytest

from forerun import LLM, Sampling
from forerun.bench.workloads import Item
from forerun.engine.runner import ModelRunner
from forerun.kernels import native
from forerun.tune import trial
from forerun.tune.search import best, figures
from forerun.tune.settings import PLAIN, Setting
from forerun.tune.trial import Bill, Entrant, Trial, enter, run
from forerun.types import Costs

CURVE = Costs((1, 2, 4, 8), (1.0, 1.2, 1.4, 2.0))
GREEDY = Sampling(temperature=0, max_tokens=12, seed=0)


def bill(costs, *rows):
    found = Bill()
    for count in rows:
        found.add(costs, count, 0, 1)
    return found


def test_the_prediction_is_tokens_per_step_times_one_row_over_rows_and_drafting():
    plain = Trial(20, 99.0, bill(CURVE, *[1] * 20))
    drafting = Bill(passes=15, rows=15, seconds=5 * 0.3)
    own = Trial(15, 99.0, bill(CURVE, *[4] * 5), (drafting,))
    assert own.predicted(plain) == pytest.approx(3 * 1.0 / (1.4 + 0.3))


def test_the_loop_is_part_of_every_step():
    plain = Trial(20, 99.0, bill(CURVE, *[1] * 20), loop=0.1)
    own = Trial(15, 99.0, bill(CURVE, *[4] * 5), loop=0.2)
    assert own.predicted(plain) == pytest.approx(3 * 1.1 / (1.4 + 0.2))


def test_what_a_step_takes_beside_its_passes_is_its_median(clock, plain, monkeypatch):
    """The engine's own clock goes on by a second per look: from one mark to the next, one second."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(plain.engine, "clock", lambda: next(seconds))
    found = run(Entrant(PLAIN, plain.engine, CURVE), [Item("a", 1, (0, 1, 2))], GREEDY)
    assert found.beside >= 4  # began, planning, committing, emitting; reports of events look as well
    assert found.loop == 0
    drafter = enter(SETTINGS[1], plain, {"max_requests": 2}, CURVE, lambda _: SMALL)
    drafter.engine.clock = plain.engine.clock
    drafted = run(drafter, [Item("a", 1, (0, 1, 2))], GREEDY)
    assert drafted.beside == pytest.approx(found.beside - 3 * 0.5)  # three passes of a small model, by their costs


def test_steps_of_other_widths_count_at_their_own_cost():
    plain = Trial(4, 1.0, bill(CURVE, 1, 1, 1, 1))
    own = Trial(6, 1.0, bill(CURVE, 1, 8))
    assert own.predicted(plain) == pytest.approx(6 / 3.0)  # two passes of 4.5 rows would be 1.475 each


def test_what_is_measured_is_the_ratio_of_speeds():
    assert Trial(30, 2.0, Bill()).measured(Trial(20, 4.0, Bill())) == pytest.approx(15 / 5)


def test_contexts_and_batches_reach_the_curve():
    costs, found = Costs((1, 2), (1.0, 1.0), (0.1, 0.3), 0), Bill()
    found.add(costs, 2, 10, 2)
    found.add(costs, 2, 10, 1)
    assert (found.passes, found.rows, found.seconds) == (2, 4, pytest.approx(1 + 1 + 1 + 3))


class Clock:
    """Time that passes only in models: by CURVE in the target, half a second in a small one."""

    def __init__(self, monkeypatch):
        self.now, self.off, original = 0.0, 0.0, ModelRunner.run

        def spend(runner, work):
            rows = sum(len(one.tokens) for one in work)
            self.now += (CURVE.of(rows) if runner.info.name == "toy:0:3" else 0.5) + self.off
            return original(runner, work)

        monkeypatch.setattr(ModelRunner, "run", spend)
        monkeypatch.setattr(trial, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture(scope="module")
def plain():
    return LLM("toy:0", drafter="none", decoder="autoregressive", max_requests=2)


SMALL = Costs((1, 2), (0.5, 0.5))
SETTINGS = [
    Setting("ngram:min_match=1", "fixed:nodes=3"),
    Setting("draft-model:model=toy:100,depth=3", "fixed:nodes=3"),
    Setting("draft-model:model=toy:100,depth=2,tree=(level:width=2)", "fixed:nodes=6"),
    Setting("several:of=[ngram,(draft-model:model=toy:100)]", "fixed:nodes=4"),
]


@pytest.mark.parametrize("prompts", [[(0, 1, 2, 0, 1)], [(0, 1), (2, 1, 1, 0)]], ids=["alone", "two"])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_where_only_models_take_time_predictions_are_right(clock, plain, setting, prompts):
    items = [Item("a", number, tokens) for number, tokens in enumerate(prompts, 1)]
    mine = run(enter(setting, plain, {"max_requests": 2}, CURVE, lambda _: SMALL), items, GREEDY)
    base = run(Entrant(PLAIN, plain.engine, CURVE), items, GREEDY)
    assert base.tokens == 11 * len(prompts)
    assert 0 < mine.tokens <= base.tokens  # the first step may have brought several
    assert base.seconds == pytest.approx(base.expected)
    assert mine.seconds == pytest.approx(mine.expected)
    assert mine.predicted(base) == pytest.approx(mine.measured(base))


@pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
def test_a_tree_that_grows_in_one_go_costs_what_its_passes_do(monkeypatch):
    model = LLM("reference", drafter="none", decoder="autoregressive", max_requests=2, threads=1, context_length=128)
    items = [Item("a", number, (5 + number, 9, 30)) for number in range(2)]
    setting, small = Setting("draft-model:tree=opt-tree", "fixed:nodes=6"), Costs((1, 9), (0.1, 0.9), (1.0, 1.0), 0)

    def bills():
        entrant = enter(setting, model, {"max_requests": 2, "context_length": 128}, CURVE, lambda _: small)
        return run(entrant, items, replace(GREEDY, max_tokens=24)).drafting

    at_once = bills()
    monkeypatch.setattr(ModelRunner, "branches", False)
    by_levels = bills()
    assert at_once[0].passes > 10
    assert [(one.passes, one.rows) for one in at_once] == [(one.passes, one.rows) for one in by_levels]
    assert at_once[0].seconds == pytest.approx(by_levels[0].seconds)


def test_what_no_model_takes_is_not_predicted(clock, plain):
    items = [Item("a", 1, (0, 1, 2))]
    base = run(Entrant(PLAIN, plain.engine, CURVE), items, GREEDY)
    clock.off = 0.25
    slow = run(Entrant(PLAIN, plain.engine, CURVE), items, GREEDY)
    assert slow.expected == base.expected
    assert slow.seconds == pytest.approx(base.seconds + 11 * 0.25)


def test_a_text_of_one_token_leaves_nothing_to_count(clock, plain):
    found = run(Entrant(PLAIN, plain.engine, CURVE), [Item("a", 1, (0,))], replace(GREEDY, max_tokens=1))
    assert (found.tokens, found.target.passes) == (0, 0)


def test_the_error_is_that_of_a_text_and_not_between_texts():
    plain = Trial(10, 10.0, bill(CURVE, *[1] * 10))
    own = [Trial(n, off * 5.6, bill(CURVE, 4, 4, 4, 4)) for n, off in ((10, 0.4), (20, 1.0), (30, 1.0))]
    found = figures(Setting("a", "b"), [(one, plain) for one in own])
    assert found["predicted"]["median"] / found["measured"]["median"] == pytest.approx(0.8)
    assert found["error"] == pytest.approx(0)


def test_figures_are_medians_over_pairs():
    plain = Trial(10, 10.0, bill(CURVE, *[1] * 10))
    own = [Trial(10, 1.0 * n, bill(CURVE, 4, 4, 4, 4), (bill(SMALL, 1, 1, 1, 1),)) for n in (4, 5, 8)]
    found = figures(Setting("a", "b"), [(one, plain) for one in own])
    assert found["measured"]["median"] == pytest.approx(2.0)
    assert found["predicted"]["median"] == pytest.approx(10 / (4 * 1.4 + 4 * 0.5))
    assert found["error"] == pytest.approx(10 / 7.6 / 2 - 1)
    assert (found["tokens_per_step"], found["rows_per_step"], found["drafting_passes"]) == (2.5, 4, 1)
    assert (found["pass_ms"], found["drafting_ms"]) == pytest.approx((1400, 500))


@pytest.mark.parametrize(("speeds", "chosen"), [((1.2, 1.5), "b"), ((0.9, 1.0), "none"), ((1.01, 0.5), "a")])
def test_the_fastest_is_chosen_where_something_is_faster(speeds, chosen):
    rows = [{"drafter": n, "planner": "p", "measured": {"median": s}} for n, s in zip("ab", speeds, strict=True)]
    assert best(rows)["drafter"] == chosen
