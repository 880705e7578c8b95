"""Whom the planner `auto` does not ask, and when it does not think anew."""

from collections import Counter
from dataclasses import replace

import pytest

from forerun.drafters import DRAFTERS
from forerun.planners.auto import REST, AutoPlanner
from forerun.planners.contract import Spent
from forerun.rng import CounterRng
from forerun.testing import Ask, Toy
from forerun.types import Bar, Context, Costs, Draft, Emission, Facts, Sampling, Turn

CONTEXTS = [Context(i, [0, 1], 2, Sampling(), CounterRng(0)) for i in range(4)]
WRONG, NOTHING = Draft((0,), (-1,)), Draft()


class Given:
    """A drafter's facts, and passes whose rows cost as much as passes."""

    bar = Bar()

    def __init__(self, **facts):
        self.drafter = Facts(**facts)

    @staticmethod
    def costs():
        return Costs((1, 64), (1.0, 64.0))


def made(**facts):
    """A planner, and a count of its decisions."""
    plan, thought = AutoPlanner(AutoPlanner.Options(), Given(**facts)), Counter()
    best = plan._best

    def counted(batch, room):
        thought["decisions"] += 1
        return best(batch, room)

    plan._best = counted
    return plan, thought


def step(plan, batch, draft):
    """One step in which whoever is asked drafts this, of which nothing comes true; the shares."""
    shares = plan.share(batch, 100)
    drafts = [draft if share else NOTHING for share in shares]
    asked = [i for i, share in enumerate(shares) if share]
    for i, one in zip(asked, plan.cut([batch[i] for i in asked], [drafts[i] for i in asked]), strict=True):
        drafts[i] = one
    turns = [Turn((Emission(0, ""),), (0,), len(one), len(one)) for one in drafts]
    rows = len(batch) + sum(map(len, drafts))
    plan.observe(batch, drafts, turns, Spent(0.01 * any(shares), plan.passes.costs.of(rows), rows))
    return shares


def test_who_never_drafts_is_never_asked():
    plan, thought = made(silent=True)
    assert {tuple(step(plan, CONTEXTS[:n], NOTHING)) for n in (1, 4, 2) for _ in range(2 * REST)} == {
        (0,) * n for n in (1, 2, 4)
    }
    assert not thought
    asking, _ = made()
    assert any(any(step(asking, CONTEXTS[:1], NOTHING)) for _ in range(4))


@pytest.mark.parametrize("name", [name for name, member in DRAFTERS.items() if member.facts.silent])
def test_who_is_said_never_to_draft_never_does(name):
    rig = Toy(drafter=name).build()
    drafts, propose = [], rig.engine.members.drafter.inner.propose
    rig.engine.members.drafter.inner.propose = lambda *told: drafts.append(propose(*told)) or drafts[-1]
    rig.write([Ask((0, 1, 2, 0, 1), Sampling(temperature=0, max_tokens=30))])
    assert drafts  # the planner of toys asks in every step
    assert not any(any(one) for one in drafts)


def test_while_nothing_was_ever_drafted_it_asks_and_does_not_think_again():
    plan, thought = made()
    shares = [step(plan, CONTEXTS[:2], NOTHING) for _ in range(50)]
    assert shares[0] == [0, 0]  # what a step takes without drafts has to be known
    assert set(map(tuple, shares[1:])) == {(1, 1)}
    assert thought["decisions"] == 1
    step(plan, CONTEXTS[:3], NOTHING)
    assert thought["decisions"] == 2  # there is a further request


def test_while_nothing_pays_it_rests_unless_half_the_requests_are_gone():
    plan, thought = made()
    step(plan, CONTEXTS[:1], WRONG)
    for _ in range(30):
        last = step(plan, CONTEXTS[:3], WRONG)
    assert last == [0, 0, 0]
    plan.again, before = plan.steps + 10, thought["decisions"]
    fresh = [replace(context, id=9) for context in CONTEXTS[:1]]
    for batch in (CONTEXTS[:3], CONTEXTS[:2] + fresh, CONTEXTS[:4], CONTEXTS[:2]):
        assert plan.share(batch, 100) == [0] * len(batch)
    assert thought["decisions"] == before
    plan.share(CONTEXTS[:1], 100)
    assert thought["decisions"] == before + 1
