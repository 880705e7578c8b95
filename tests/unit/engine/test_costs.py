"""What passes cost is measured, and planners may rely on it."""

import pytest

from forerun import LLM
from forerun.engine import costs
from forerun.errors import ConfigError
from forerun.planners.free import FreePlanner
from forerun.types import Costs

CURVE = Costs((1, 2, 4, 8), (1.0, 1.0, 1.1, 1.9))


class Fixed:
    """A Setup as far as the planner looks at it."""

    def costs(self):
        return CURVE


def test_costs_lie_on_straight_lines_between_measured_widths():
    assert [CURVE.of(rows) for rows in (1, 2, 3, 4, 6, 8, 12)] == pytest.approx([1, 1, 1.05, 1.1, 1.5, 1.9, 2.7])


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


@pytest.mark.parametrize("length", [8, 2048])
def test_measured_costs_never_fall_and_leave_the_engine_as_it_was(length):
    llm = LLM("toy:1", planner="free", drafter="ngram", context_length=length)
    found = llm.engine.members.planner.costs
    assert found.rows[:2] == (1, 2)
    assert len(found.rows) > 1
    assert all(seconds > 0 for seconds in found.seconds)
    assert list(found.seconds) == sorted(found.seconds)
    llm.engine.cache.check()
