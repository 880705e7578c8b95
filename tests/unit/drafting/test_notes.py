"""Many steps at once: what they took without drafts, what drafts added, and which of them say nothing."""

import pytest

from forerun.drafting.notes import HELD, READ, Note, costs, learn_times
from forerun.drafting.passes import Passes, Seen
from forerun.drafting.toll import Line, Toll, typical
from forerun.types import Costs, Draft

PLAIN = Note(2, (), (), {}, [Draft()] * 2, (), (), timed=True, steps=1, drafting=0.1, running=1.0, rows=2, around=0.4)
DRAFTED = PLAIN._replace(
    shares={0: 2, 1: 2}, drafts=[Draft.chain([0, 0])] * 2, made=[0, 1], drafting=0.5, running=1.5, rows=6
)
EMPTY = DRAFTED._replace(drafts=[Draft()] * 2, made=[], rows=2, drafting=9.0)


def learnt(*notes):
    toll, passes = Toll(), Passes(lambda: Costs((1, 64), (1.0, 1.0)))
    for _ in range(20):
        learn_times(notes, toll, passes)
    return toll, passes


def test_what_drafts_add_is_told_from_what_every_step_takes():
    toll, passes = learnt(*[PLAIN] * 3, *[DRAFTED] * 3)
    assert toll.without(2) == pytest.approx(0.4, abs=0.01)  # a step with drafts was done with all else in that time
    assert sum(toll.line(2)) + toll.line(2)[1] == pytest.approx(0.5, abs=0.01)
    assert [passes.of(2), passes.of(6)] == pytest.approx([1.0, 1.5], abs=0.01)
    assert costs([DRAFTED], 0.0, toll, passes) == pytest.approx([(0.5 + 0.5) / 1.4], abs=0.02)
    assert costs([DRAFTED._replace(steps=3)], 0.0, toll, passes) == 3 * costs([DRAFTED], 0.0, toll, passes)


def test_the_first_step_bears_what_it_took_to_decide():
    toll, passes = learnt(PLAIN, DRAFTED)
    cost, same = costs([DRAFTED] * 2, 0.7, toll, passes)
    assert cost - same == pytest.approx(0.5, abs=0.02)  # of a step without drafts


def test_drafts_bear_what_their_own_passes_took():
    """Not what such passes are thought to take; where a prompt is read as well, the pass says nothing of drafts."""
    toll, passes = learnt(PLAIN, DRAFTED)
    usual, longer = costs([DRAFTED, DRAFTED._replace(running=1.6)], 0.0, toll, passes)
    assert longer - usual == pytest.approx(0.1 / 1.4, abs=0.01)
    (held_up,) = costs([DRAFTED._replace(running=9.0)], 0.0, toll, passes)
    assert held_up - usual == pytest.approx(0.3 / 1.4, abs=0.03)
    among = [DRAFTED._replace(rows=40, running=running) for running in (1.5, 9.0)]
    assert len(set(costs(among, 0.0, toll, passes))) == 1


def test_a_step_that_was_held_up_is_charged_in_part_and_one_that_reads_texts_nearly_whole():
    toll, passes = learnt(PLAIN, DRAFTED)
    assert costs([DRAFTED._replace(drafting=50.0)], 0.0, toll, passes) == [HELD]
    assert costs([DRAFTED._replace(drafting=50.0, timed=False)], 0.0, toll, passes) == [READ]
    early = learnt(PLAIN)
    learn_times([DRAFTED], *early)
    assert costs([DRAFTED._replace(drafting=50.0, timed=False)], 0.0, *early) == [HELD]  # the very first
    assert 2 < costs([DRAFTED._replace(drafting=4.0, timed=False)], 0.0, toll, passes)[0] < READ


def test_drafts_that_read_new_texts_are_a_part_of_the_price():
    """One in four, three times as long."""
    toll, _ = learnt(PLAIN, *[DRAFTED] * 3, DRAFTED._replace(drafting=1.5))
    assert sum(toll.line(2)) + toll.line(2)[1] == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    "other", [EMPTY, DRAFTED._replace(drafting=9.0, timed=False), PLAIN._replace(around=9.0, rows=40)]
)
def test_steps_that_are_not_as_a_rule_change_no_price(other):
    """Who found nothing to draft, has rested, or was not alone: somebody's prompt was read."""
    alone, among = learnt(PLAIN, DRAFTED)[0], learnt(PLAIN, other, DRAFTED)[0]
    assert among.without(2) == alone.without(2)
    assert among.line(2) == alone.line(2)


def test_drafts_have_their_price_by_how_many_were_asked_for():
    """Not by how many had a node: those cost as much that came out empty."""
    asked = DRAFTED._replace(
        shares=dict.fromkeys(range(4), 2), requests=4, made=[0], drafts=[Draft.chain([0, 0])], rows=6
    )
    toll, _ = learnt(PLAIN._replace(requests=4, rows=4), asked)
    assert toll.lines.keys() == {3}


def test_of_whom_nothing_was_seen_without_drafts_drafts_have_no_price_yet():
    toll, _ = learnt(PLAIN, DRAFTED._replace(requests=8, rows=12))
    assert not toll.bare(8)
    assert not toll.lines


def test_a_prompt_that_is_read_is_no_price_of_drafts():
    toll, passes = learnt(PLAIN, DRAFTED)
    reading = DRAFTED._replace(rows=60, around=30.0)
    assert costs([reading], 0.0, toll, passes) == pytest.approx(costs([DRAFTED], 0.0, toll, passes), abs=0.4)


def test_beside_a_prompt_drafts_cost_as_much_as_in_other_steps():
    toll, passes = learnt(PLAIN, DRAFTED)
    longer, reading = DRAFTED._replace(around=1.1), DRAFTED._replace(rows=60, around=30.0)
    other, beside = costs([longer, reading], 0.0, toll, passes)
    (alone,) = costs([reading], 0.0, toll, passes)
    assert beside - alone == pytest.approx(0.5, abs=0.02)  # 0.7 seconds of a step's 1.4
    assert other - costs([DRAFTED], 0.0, toll, passes)[0] == pytest.approx(0.5, abs=0.02)


def test_passes_of_about_as_many_rows_are_learnt_from_as_one(monkeypatch):
    """Their rows and their seconds are those in the middle; who has no node is not among them."""
    told, passes = [], Passes(lambda: Costs((1, 64), (1.0, 1.0)))
    monkeypatch.setattr(passes, "learn", lambda *seen: told.extend(seen))
    draft, bare = [Draft.chain([0] * 2), Draft.chain([0])], [Draft()] * 2
    shorter = DRAFTED._replace(drafts=draft, rows=5, running=1.25)
    learn_times([DRAFTED._replace(rows=6), shorter, DRAFTED._replace(drafts=bare, rows=2)], Toll(), passes)
    assert told == [Seen(6, 1.375, drafts=True, steps=2), Seen(2, 1.5, drafts=False)]


def test_one_of_many_that_was_held_up_says_little_and_many_are_believed():
    assert typical([1.0] * 9 + [50.0]) == pytest.approx(1.05)
    line, passes = Line(), Passes(lambda: Costs((1, 64), (1.0, 1.0)))
    for _ in range(20):
        line.learn(1, 1.0)
        passes.learn(Seen(4, 1.0, drafts=True))
    assert line.learn(1, 4.0) == pytest.approx(1.5)
    assert line.learn(1, 4.0, steps=16) == pytest.approx(4.0)
    passes.learn(Seen(4, 4.0, drafts=True, steps=64))
    assert passes.of(4) == pytest.approx(3.5, abs=0.2)


def test_sizes_that_are_seen_in_turns_do_not_move_each_other():
    """What is not seen for a while moves with what is; these are, though not in the order in which they are told."""
    passes = Passes(lambda: Costs((1, 64), (1.0, 1.0)))
    for _ in range(20):
        passes.learn(Seen(1, 1.0, drafts=False, steps=30), Seen(6, 1.0, drafts=True, steps=30))
    for _ in range(20):
        passes.learn(Seen(1, 2.0, drafts=False, steps=30), Seen(6, 1.0, drafts=True, steps=30))
    assert passes.of(6) == pytest.approx(1.0, abs=0.05)
    for _ in range(20):
        passes.learn(Seen(1, 4.0, drafts=False, steps=30))
    assert passes.of(6) == pytest.approx(2.0, abs=0.1)
