"""What passes cost is measured, and planners may rely on it."""

from itertools import count

import numpy as np
import pytest

from forerun import LLM
from forerun.caches.contiguous import ContiguousCache
from forerun.engine import costs
from forerun.engine.batch import pack
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.planners.free import FreePlanner
from forerun.types import Costs

CURVE = Costs((1, 2, 4, 8), (1.0, 1.0, 1.1, 1.9))


class Fixed:
    """A Setup as far as the planner looks at it."""

    def costs(self):
        return CURVE


def test_costs_lie_on_straight_lines_between_measured_widths():
    assert [CURVE.of(rows) for rows in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1, 1, 1.05, 1.1, 1.5, 1.9, 2.7])


LONG = Costs((1, 3, 7), (1.0, 1.4, 3.0), (0.001, 0.003, 0.005), 200)


@pytest.mark.parametrize(
    ("rows", "context", "requests", "seconds"),
    [
        (3, None, 1, 1.4),
        (3, 200, 1, 1.4),
        (3, 0, 1, 0.8),
        (3, 1200, 1, 4.4),
        (2, 1200, 1, 1.2 + 0.002 * 1000),
        (7, 0, 4, 2.0),
        (7, 1200, 7, 2.0 + 1.2),  # a row each: a row's slope
        (6, 600, 2, 2.6 - 0.0045 * 200 + 0.003 * 600),
    ],
)
def test_a_context_costs_what_its_rows_read_of_it(rows, context, requests, seconds):
    assert LONG.of(rows, context, requests) == pytest.approx(seconds)


def test_costs_without_slopes_do_not_know_contexts():
    assert CURVE.of(4, 10_000, 2) == CURVE.of(4)


@pytest.mark.parametrize(
    ("price", "requests", "room", "shares"),
    [
        (1.25, 1, 64, [3]),
        (1.0, 1, 64, [1]),
        (1.9, 1, 64, [7]),
        (1.25, 1, 2, [2]),
        (1.25, 2, 64, [1, 1]),
        (1.65, 3, 64, [2, 1, 1]),
        (1.25, 0, 64, []),
    ],
)
def test_the_widest_pass_that_the_price_buys_is_shared(price, requests, room, shares):
    planner = FreePlanner(FreePlanner.Options(price), Fixed())
    assert planner.share([None] * requests, room) == shares


def test_a_price_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"price is 0\.5; a pass with drafts costs at least 1"):
        LLM("toy:1", planner="free:price=0.5")


def test_every_width_is_measured_once_a_round_and_in_turns():
    order = []
    calls = {width: lambda width=width: order.append(width) for width in (1, 2, 4)}
    for turn in range(3):
        assert all(seconds >= 0 for seconds in costs.timed(calls, turn).values())
    assert order == [1, 2, 4, 2, 4, 1, 4, 1, 2]


def test_narrow_passes_come_first_and_some_before_them_do_not_count(monkeypatch):
    """A narrow pass behind a wide one takes longer than the steps that it stands for; rounds do not begin evenly."""
    order, clock = [], count()

    def passes(_, widths, context):
        return {width: lambda width=width: order.append((width, context)) for width in widths}

    monkeypatch.setattr(costs, "passes", passes)
    monkeypatch.setattr(costs, "perf_counter", lambda: 0.003 * next(clock))
    costs.measure(None, 2048, seconds=0.0)
    near, far = ([(width, at) for width in some] for some, at in ((costs.WIDTHS, costs.NEAR), (costs.FEW, costs.FAR)))
    wanted = [step for warm in (3, 5) for some in (near, far) for step in ([(1, costs.NEAR)] * warm + some)]
    assert order == wanted


@pytest.mark.parametrize(("shares", "second", "alone"), [((1, 0.5, 1, 0.5, 0.5), 1, True), ((1, 0.5), 2, False)])
def test_a_round_whose_thread_had_no_core_does_not_count(monkeypatch, shares, second, alone):
    """A pass takes a second of its thread, and as much longer as it waits for a core; the first round warms up."""
    now, ran, turns, share = [0.0], [0.0], iter(np.repeat(shares, 2)), [1.0]  # near and far

    def step():
        now[0], ran[0] = now[0] + 1 / share[0], ran[0] + 1

    def timed(calls, turn):
        share[0] = next(turns)
        return once(calls, turn)

    once = costs.timed
    monkeypatch.setattr(costs, "timed", timed)
    monkeypatch.setattr(costs, "passes", lambda *given: dict.fromkeys(given[1], step))
    monkeypatch.setattr(costs, "perf_counter", lambda: now[0])
    monkeypatch.setattr(costs, "thread_time", lambda: ran[0])
    monkeypatch.setattr(costs, "ROUNDS", len(shares))
    found = costs.measure(None, 2048, seconds=1e9 if alone else 0.0)
    assert set(found.seconds) == {second}
    assert found.alone is alone


@pytest.mark.parametrize("length", [8, 2048])
def test_measured_costs_never_fall_and_leave_the_engine_as_it_was(length):
    llm = LLM("toy:1", planner="free", drafter="ngram", context_length=length, profiles="off")
    found = llm.engine.members.planner.costs
    assert found.rows[:2] == (1, 2)
    assert len(found.rows) > 1
    assert all(seconds > 0 for seconds in found.seconds)
    assert list(found.seconds) == sorted(found.seconds)
    assert len(found.slopes) == len(found.rows)
    assert min(found.slopes) >= 0
    assert all(found.of(rows, 0) >= 0 for rows in found.rows)
    llm.engine.cache.check()


def test_a_width_that_was_held_up_makes_no_wider_one_dear(monkeypatch):
    """Of two rounds the shorter counts, and no pass takes longer than a wider one."""
    now, late = [0.0], {(5, 1), (5, 2), (12, 1)}  # width and round
    rounds = dict.fromkeys(costs.WIDTHS, -1)

    def step(width):
        rounds[width] += 1
        now[0] += width + (100 if (width, rounds[width]) in late else 0)

    near_or_far = iter((True, False))

    def passes(_, widths, __):
        near = next(near_or_far)
        return {width: (lambda width=width: step(width) if near and width > 1 else None) for width in widths}

    monkeypatch.setattr(costs, "passes", passes)
    monkeypatch.setattr(costs, "perf_counter", lambda: now.__setitem__(0, now[0] + 1e-9) or now[0])
    monkeypatch.setattr(costs, "WARMING", 0.0)
    monkeypatch.setattr(costs, "ROUNDS", 3)
    monkeypatch.setattr(costs, "ALONE", -1.0)
    found = costs.measure(None, 2048, seconds=1e9)
    assert found.seconds[1:8] == pytest.approx((2, 3, 4, 6, 6, 8, 12), abs=1e-3)


def test_a_pass_is_measured_behind_a_short_and_a_long_context(monkeypatch):
    class Runner:
        """Takes a second a row, and a millisecond more for a token of context and row."""

        info = ToyModel().info

        def __init__(self):
            self.cache = ContiguousCache(ContiguousCache.Options(), self.info.layout, 2, 800)
            self.now = 0.0

        def run(self, work):
            (one,) = work
            self.now += len(one.tokens) * (1 + 0.001 * self.cache.length(one.slot))
            batch = pack(work, self.cache, self.info.layout.device)
            self.cache.advance(batch.segments)

    runner = Runner()
    monkeypatch.setattr(costs, "perf_counter", lambda: runner.now)
    found = costs.measure(runner, 704)
    assert found.context == costs.NEAR
    for rows in (1, 2, 16, 64):
        assert found.of(rows, 0) == pytest.approx(rows)
        assert found.of(rows, 1000) == pytest.approx(2 * rows)
