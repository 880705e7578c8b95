"""The planner `auto` on made-up costs and outcomes: it finds what pays, gives up what does not, and tries again."""

from dataclasses import replace
from itertools import cycle, groupby
from statistics import median

import pytest

from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.drafting.toll import Line, Toll
from forerun.drafting.worth import Fate, Record
from forerun.errors import ConfigError
from forerun.planners.auto import AutoPlanner
from forerun.planners.contract import Spent
from forerun.rng import CounterRng
from forerun.testing.toy import Toy
from forerun.types import Bar, Context, Costs, Dist, Draft, Emission, Facts, Sampling, Turn

FLAT = Costs((1, 64), (1.0, 1.1))
STEEP = Costs((1, 64), (1.0, 64.0))
CONTEXT = Context(0, [0, 1], 2, Sampling(), CounterRng(0))


class Fixed:
    def __init__(self, costs, lesson):
        self.given, self.drafter, self.bar = costs, Facts(lesson=lesson), Bar()

    def costs(self):
        return self.given


def planner(costs, most=8, lesson=0):
    return AutoPlanner(AutoPlanner.Options(most), Fixed(costs, lesson))


def play(plan, rules, steps, drafting=0.01, room=100, *, verified=False, true=None, begin=0):
    """Steps in which request i drafts as asked, and rules[i](nodes) of a chain are accepted; shares of every step,
    or what was verified of them. Passes take what the planner was told, or what is `true`.
    """
    true = true or plan.passes.costs
    batch = [replace(CONTEXT, id=begin + i) for i in range(len(rules))]
    history = []
    for _ in range(steps):
        shares = plan.share(batch, room)
        drafting_ones = [i for i, share in enumerate(shares) if share]
        drafts = [Draft.chain([0] * share) for share in shares]
        made = plan.cut([batch[i] for i in drafting_ones], [drafts[i] for i in drafting_ones]) if drafting_ones else []
        for i, draft in zip(drafting_ones, made, strict=True):
            drafts[i] = draft
        counts = [rule(len(draft)) for rule, draft in zip(rules, drafts, strict=True)]
        turns = [
            Turn((Emission(0, ""),) * (count + 1), tuple(range(3 + count)), len(draft), len(draft))
            for count, draft in zip(counts, drafts, strict=True)
        ]
        history.append([len(draft) for draft in drafts] if verified else shares)
        rows = sum(map(len, drafts)) + len(shares)
        plan.observe(batch, drafts, turns, Spent(drafting * max(shares), true.of(rows), rows))
    return history


def never(nodes):
    return 0


def always(nodes):
    return nodes


@pytest.mark.parametrize("drafting", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_a_drafter_that_is_always_wrong_costs_next_to_nothing(drafting, size):
    """The time of 2,000 steps, against as many without drafts, from the first step on."""
    plan, spent = planner(FLAT), list[Spent]()
    observe = plan.observe
    plan.observe = lambda *told: (spent.append(told[-1]), observe(*told))
    history = play(plan, [never] * size, 2000, drafting)
    assert sum(one.drafting + one.running for one in spent) <= 1.012 * 2000 * FLAT.of(size)
    assert any(map(any, history[-500:]))  # it does not give up
    assert drafting < 0.1 or sum(map(any, history[-1000:])) < 150


def test_what_is_always_right_fills_a_flat_curve():
    assert play(planner(FLAT), [always], 200)[-1] == [8]


def test_a_steep_curve_is_left_alone():
    history = play(planner(STEEP), [lambda nodes: min(nodes, 1)], 400)
    assert history[-2] == [0]
    assert sum(shares[0] > 0 for shares in history[100:]) <= 300 / 8


def test_dear_drafting_is_paid_for():
    curve, two = Costs((1, 64), (1.0, 4.0)), [lambda nodes: min(nodes, 2)]
    cheap = play(planner(curve), two, 200, drafting=0.01, verified=True)[-40:]
    dear = play(planner(FLAT), two, 200, drafting=2.0)[-40:]
    assert 2 <= median(share for (share,) in cheap) <= 3  # one more is tried now and then
    assert max(share for (share,) in dear) == 0


def test_the_first_drafts_are_of_one_node():
    """After a step without, until it is known what drafting takes: the first reads the prompt, and six are slow."""
    assert play(planner(FLAT), [always, always], 13) == [[0, 0], *[[1, 1]] * 7, *[[0, 0]] * 4, [8, 8]]


@pytest.mark.parametrize("late", [1, 2])
def test_an_early_draft_that_is_held_up_changes_little(late):
    plan = planner(FLAT)
    play(plan, [always], late)
    play(plan, [always], 1, drafting=50.0)
    assert sum(map(any, play(plan, [always], 20))) > 15


@pytest.mark.parametrize(("drafting", "charged"), [(0.25, 2.0), (50.0, 2.5)])
def test_drafts_are_charged_as_long_as_they_took_but_for_one_that_was_held_up(drafting, charged):
    """A drafter that has rested has more to read than as a rule."""
    plan = planner(FLAT)
    assert play(plan, [always], 50, drafting=0.1)[-1] == [8]
    before, plan.again = plan.losses.of(1).vain, 0
    play(plan, [never], 1, drafting=drafting)
    plan._settle()
    assert plan.losses.of(1).vain - before == pytest.approx(charged, abs=0.05)


@pytest.mark.parametrize(("size", "drafting"), [(8, 0.1), (16, 0.1), (16, 0.3)])
def test_drafts_of_which_nothing_is_left_are_not_made_again(size, drafting):
    """Many requests soon know that drafts are always wrong, and a short line of them need not pay much for it."""
    plan, spent = planner(FLAT), list[Spent]()
    observe = plan.observe
    plan.observe = lambda *told: (spent.append(told[-1]), observe(*told))
    play(plan, [never] * size, 150, drafting)
    assert sum(one.drafting + one.running for one in spent) <= 1.015 * 150 * FLAT.of(size)


def from_four(nodes):
    return nodes if nodes >= 4 else 0


def test_a_drafter_that_few_nodes_teach_nothing_gets_as_many_as_it_says():
    history = play(planner(FLAT, lesson=4), [from_four], 200)
    assert history[-1] == [8]
    assert {share for (share,) in history if share} == {4, 8}


def test_a_lesson_is_verified_whole_or_not_drafted():
    curve, two = Costs((1, 64), (1.0, 4.0)), [lambda nodes: min(nodes, 2)]
    taught = play(planner(curve, lesson=4), two, 200, verified=True)
    assert min(share for (share,) in taught if share) == 4
    assert max(share for (share,) in play(planner(STEEP, lesson=4), two, 200)[-40:]) == 0
    knee = Costs((1, 2, 3, 64), (1.0, 1.05, 2.5, 70.0))  # one node would be best
    assert {share for (share,) in play(planner(knee, lesson=4), two, 100)} & {1, 2, 3} == set()
    assert planner(curve, most=3, lesson=4).lesson == 3


def test_lessons_begin_with_some_of_many_requests():
    history = play(planner(FLAT, lesson=4), [always] * 9, 3)
    assert history == [[0] * 9, [4, 4] + [0] * 7, [4, 4] + [0] * 7]
    assert play(planner(FLAT, lesson=4), [always] * 3, 40, room=3) == [[0] * 3] * 40


def test_drafts_begin_with_a_few_of_many_requests_and_with_as_many_nodes_as_these_share():
    assert play(planner(FLAT), [always] * 9, 2)[1] == [1] * 4 + [0] * 5
    for size, nodes in ((1, 4), (2, 2), (8, 1)):
        plan = planner(FLAT)
        plan.bar.heeded, batch = True, [replace(CONTEXT, id=i, sampling=Sampling(temperature=0.0)) for i in range(size)]
        plan.share(batch, 100)
        plan.observe(batch, [Draft()] * size, [Turn((Emission(0, ""),), (0,))] * size, Spent(0.0, 1.0, size))
        assert set(plan.share(batch, 100)) - {0} == {nodes}


def test_the_drafter_says_how_many_nodes_teach_it():
    plan = Toy(drafter="token-recycling", planner="auto").build().engine.members.planner.inner
    assert plan.lesson == TokenRecyclingDrafter.facts.lesson > 0


def test_who_lost_four_steps_waits():
    plan = planner(FLAT)
    play(plan, [always], 50)
    plan.losses.of(1).vain = 1000.0
    assert play(plan, [always], 30)[16:] == [[0]] * 14


def test_drafts_that_have_paid_may_have_bad_luck_for_a_while():
    plan = planner(FLAT)
    solvent = list[bool]()
    for tokens in [2.0] * 100 + [0.0] * 60:
        plan.losses.add(1, [1.0], tokens)
        solvent.append(plan.losses.bearable(1))
    assert all(solvent[:130])
    assert not any(solvent[145:])


def decisions(plan, rules, steps, **kwargs):
    """The steps of a play in which the planner thought."""
    decide, thought = plan._decided, list[int]()
    plan._decided = lambda *asked: thought.append(plan.steps) or decide(*asked)
    history = play(plan, rules, steps, **kwargs)
    return thought, history


def test_most_steps_are_not_thought_about_though_some_requests_get_nothing():
    costs = Costs((1, 64), (1e-3, 4e-3))
    thought, history = decisions(planner(costs), [always] * 2 + [never] * 6, 220, room=16, drafting=1e-5)
    assert min(history[-1]) == 0 < max(history[-1])
    assert 0 < sum(step > 100 for step in thought) <= 120 / 12


def test_short_steps_are_thought_about_more_seldom():
    def count(pass_s, rule):
        thought, _ = decisions(planner(Costs((1, 64), (pass_s, 64 * pass_s))), [rule], 2000, drafting=pass_s / 100)
        return sum(step > 500 for step in thought)

    assert 0 < 2 * count(3e-4, never) < count(1.0, never)
    flat = [decisions(planner(Costs((1, 64), (s, 1.1 * s))), [always], 1000)[0] for s in (3e-4, 1.0)]
    assert 0 < 2 * len(flat[0]) < len(flat[1])


def test_most_requests_that_go_on_go_on_as_they_were():
    """Of many, one ends and another comes every few steps: not everybody is weighed anew each time."""
    plan = planner(FLAT)
    play(plan, [always] * 2, 10)
    play(plan, [always] * 8, 100)
    decide, thought = plan._decided, list[int]()
    plan._decided = lambda *asked: thought.append(plan.steps) or decide(*asked)
    batch = [replace(CONTEXT, id=i) for i in range(8)]
    plan.again = plan.steps + 20
    shares = [plan.share([*batch[k:], *(replace(CONTEXT, id=100 + i) for i in range(k))], 100) for k in (0, 1, 2)]
    assert shares == [[8] * 8] * 3
    assert not thought
    plan.share(batch[:2], 100)
    assert len(thought) == 1
    plan.again = plan.steps + 20
    plan.share(batch[:2], 3)  # no longer room for what was decided
    assert len(thought) == 2


@pytest.mark.parametrize(("pass_s", "looked_at"), [(1e-4, False), (1.0, True)])
def test_rows_that_cost_less_than_a_look_are_all_verified(pass_s, looked_at):
    plan = planner(Costs((1, 64), (pass_s, 10 * pass_s)))
    play(plan, [lambda nodes: min(nodes, 2)], 100, drafting=pass_s / 100)
    draft = replace(Draft.chain([0] * 8), confidence=(0.9, 0.9, *[0.01] * 6))
    assert (plan.cut([CONTEXT], [draft])[0] is not draft) == looked_at


def test_a_request_alone_is_drafted_for_until_the_first_drafts_are_past():
    """Nobody has made one before, so that they take longer than later ones; these pay."""
    plan, taken = planner(FLAT), iter([3.0, 2.0, 2.0, 1.5, 1.0, 0.5])
    observe = plan.observe

    def slow(batch, drafts, turns, spent):
        observe(batch, drafts, turns, spent._replace(drafting=next(taken, 0.01) if any(drafts) else 0.0))

    plan.observe = slow
    history = play(plan, [always], 100)
    assert [one for (one,) in history[2:8]] == [1] * 6
    assert min(one for (one,) in history[20:] if one) >= 4
    assert sum(one == 0 for (one,) in history[20:]) <= 4


def test_the_length_is_chosen_as_soon_as_the_first_drafts_are_past():
    # the first of the seven reads the prompt
    assert play(planner(FLAT), [always], 13) == [[0], *[[1]] * 7, *[[0]] * 4, [8]]


def test_who_guesses_well_gets_the_nodes():
    shares = play(planner(Costs((1, 64), (1.0, 4.0))), [always, never], 300, verified=True)[-2]
    assert shares[0] == 8
    assert shares[1] == 0


@pytest.mark.parametrize("told", [FLAT, STEEP])
def test_a_wrong_profile_is_found_out(told):
    """What passes take decides, with few rows and with more, not what they took when they were measured."""
    one = [lambda nodes: min(nodes, 1)] * 4
    dear = play(planner(told), one, 400, true=Costs((4, 5, 64), (1.0, 1.4, 25.0)))[100:]
    assert sum(map(any, dear)) <= 300 / 7
    assert sum(map(any, play(planner(told), one, 600, true=Costs((1, 64), (1.0, 1.2)))[300:])) > 250


def test_a_step_without_drafts_is_taken_now_and_then_where_they_pay_a_little():
    little = Costs((1, 2, 64), (1.0, 1.6, 100.0))
    history = play(planner(little), [lambda nodes: min(nodes, 1)], 600)
    assert 4 <= history[10:].count([0]) <= 24
    much = play(planner(FLAT), [always], 600)
    assert [step for step, shares in enumerate(much) if shares == [0]][:5] == [0, 8, 9, 10, 11]
    assert much[12:].count([0]) <= 6


@pytest.mark.parametrize(("two_rows", "steps"), [(1.1, 3), (1.6, 3), (1.75, 8), (1.8, 10)])
def test_a_look_at_steps_without_drafts_is_longer_where_little_is_at_stake(two_rows, steps):
    """One node is accepted every time, so that a step brings 2 / two_rows of what one without drafts brings.

    Looks grow with the pauses between them.
    """
    history = play(planner(Costs((1, 2, 64), (1.0, two_rows, 100.0))), [lambda nodes: min(nodes, 1)], 600)
    looks = [len(list(some)) for drafted, some in groupby(map(any, history[20:])) if not drafted]
    assert looks == sorted(looks)
    assert (looks[0], looks[-1]) == (3, steps)


def test_drafts_are_not_measured_by_what_passes_without_took_at_first():
    """The first ten steps are slow."""
    plan, slow = planner(Costs((1, 2, 64), (1.0, 1.6, 20.0))), iter([2.0] * 10)
    observe = plan.observe
    plan.observe = lambda batch, drafts, turns, spent: observe(
        batch, drafts, turns, spent._replace(running=spent.running * next(slow, 1.0))
    )
    luck = cycle([0, 1])
    play(plan, [lambda nodes: min(nodes, next(luck))], 400)
    assert plan.passes.of(1) == pytest.approx(1.0, rel=0.25)


def test_of_a_look_the_later_half_is_learnt_from():
    """Right after drafts passes take longer, for some steps."""
    plan, drafted = planner(Costs((1, 2, 64), (1.0, 1.85, 100.0))), []
    observe = plan.observe

    def slow(batch, drafts, turns, spent):
        drafted.append(any(drafts))
        late = 1.0 if drafted[-1] or not any(drafted[-5:]) else 1.1
        observe(batch, drafts, turns, spent._replace(running=late * spent.running))

    plan.observe = slow
    play(plan, [lambda nodes: min(nodes, 1)], 3000)
    assert plan.passes.of(1) == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(("planning", "least"), [(0.0, 6), (0.15, 12)])
def test_a_decision_holds_until_the_thought_was_worth_it(planning, least):
    """However unsteady what seems best is: steps take about a second without drafts."""
    plan, decided = planner(Costs((1, 64), (1.0, 3.0))), []
    observe = plan.observe

    def think(batch, drafts, turns, spent):
        if plan.steps == plan.settled and plan.drafting and not plan.trying:
            decided.append(plan.again - plan.steps)
        observe(batch, drafts, turns, spent._replace(planning=planning))

    plan.observe = think
    luck = cycle([2] * 30 + [8] * 30)
    play(plan, [lambda nodes: min(nodes, next(luck))] * 4, 3000)
    assert min(decided[20:]) >= least
    assert planning or min(decided[20:]) < 12


@pytest.mark.parametrize("size", [1, 3])
def test_who_comes_in_place_of_others_gets_what_these_had(size):
    plan = planner(FLAT)
    before = play(plan, [always] * size, 40)[-1]
    again = plan.again = plan.steps + 10
    assert play(plan, [never] * size, 9, begin=50) == [[sum(before) // size] * size] * 9
    assert plan.again == again  # there was no other decision
    play(plan, [never] * (2 * size + 1), 1, begin=90)
    assert plan.again != again


def test_the_beginnings_of_texts_are_not_taken_for_the_rest():
    """Short texts of which the beginning is easily guessed, and most of which is not."""
    plan, late = planner(Costs((1, 64), (1.0, 12.0))), list[int]()
    for number in range(12):
        step = iter(range(100))
        history = play(plan, [lambda nodes, step=step: nodes if next(step) < 8 else min(nodes, 1)], 60, begin=number)
        late += [one for (one,) in history[20:]] if number > 3 else []
    assert sum(late) / len(late) <= 2


def test_it_comes_back_when_guesses_become_right():
    plan = planner(FLAT)
    play(plan, [never], 1000, drafting=0.1)
    assert play(plan, [always], 300)[-2] == [8]


def test_it_comes_back_soon_when_passes_have_become_cheap():
    """A trial that paid is followed by another, and what passes take without drafts is looked at meanwhile."""
    plan, one = planner(FLAT), [lambda nodes: min(nodes, 1)]
    dear = play(plan, one, 300, true=Costs((1, 2, 64), (1.0, 3.0, 9.0)))
    assert sum(map(any, dear[100:])) <= 200 / 16
    drafted = [any(shares) for shares in play(plan, one, 400)]
    assert sum(drafted[360:]) >= 30


def test_a_trial_that_pays_goes_on_at_once():
    """Who has rested reads what was written meanwhile, once."""
    plan = planner(FLAT)
    play(plan, [never], 400, drafting=0.3)
    book = plan.losses.of(1)
    book.vain, book.later = 5.0, book.steps  # what drafts may have cost is used up, but for a trial
    observe, before = plan.observe, list[bool]()

    def rested(batch, drafts, turns, spent):
        took = (0.3 if before[-1:] == [True] else 2.0) * any(map(len, drafts))
        before.append(any(map(len, drafts)))
        observe(batch, drafts, turns, spent._replace(drafting=took))

    plan.observe = rested
    drafted = [any(shares) for shares in play(plan, [lambda nodes: min(nodes, 1)], 400)]
    first = drafted.index(True)
    assert sum(drafted[first : first + 12]) >= 9
    assert plan.toll.line(1)[0] < 0.5


def test_a_few_wrong_guesses_of_a_request_are_not_taken_for_all_of_it():
    own = Record(1)
    for step in range(4):
        own.learn([Fate(1, 1, ())], step)
    assert 0.5 < -next(own.offers(0, ([0.9], [1.0]), 1, 1))[0] < 0.7
    for step in range(4, 60):
        own.learn([Fate(1, 1, ())], step)
    assert -next(own.offers(0, ([0.9], [1.0]), 1, 1))[0] < 0.25


def test_a_text_that_nobody_has_drafted_for_is_hoped_to_be_a_good_one_where_there_are_few():
    def worth(record, running):
        return -next(record.offers(0, ([0.5], [1.0]), 1, running))[0]

    new, known = Record(1), Record(1)
    known.learn([Fate(1, 1, (0,)), Fate(1, 1, ())] * 30, 0)
    assert worth(new, 1) == 0.5
    assert worth(new, 2) > worth(new, 4) > worth(new, 16) > 0.5
    assert worth(known, 2) == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize(("size", "goes_on"), [(1, True), (16, False)])
def test_one_request_goes_on_where_drafts_seem_to_lose_a_little(size, goes_on):
    """Half of the guesses are right, and a draft takes 0.53 steps."""
    plan, luck = planner(FLAT, most=1), cycle([1, 1, 0, 0])
    history = play(plan, [lambda nodes: min(nodes, next(luck))] * size, 120, drafting=0.53)
    assert (sum(map(any, history[40:])) > 50) is goes_on


def test_drafts_of_which_nothing_is_left_do_not_go_on():
    """Passes over two rows cost twice what the profile said, so that no node pays; nor do drafts of none."""
    costs, one = Costs((1, 2, 64), (1.0, 2.2, 9.0)), [lambda nodes: min(nodes, 1)]
    history = play(planner(FLAT), one, 300, drafting=0.03, true=costs)
    assert sum(map(any, history[60:])) <= 240 / 16


@pytest.mark.parametrize(("most", "begins"), [(8, False), (80, True), (None, True)])
def test_texts_that_are_about_to_end_are_not_worth_being_read(most, begins):
    """Drafts bring a quarter more, and it takes three steps to begin."""
    plan, one = planner(FLAT, most=1), [always]
    assert any(map(any, play(plan, one, 100, drafting=0.6)[-20:]))
    plan.shares, plan.drafting, plan.again = {0: 0}, False, plan.steps
    plan.losses.begun, plan.losses.trial = 3.0, lambda *_, **__: False
    assert any(plan.share([replace(CONTEXT, sampling=Sampling(max_tokens=most))], 100)) is begins


@pytest.mark.parametrize("early", [2, 4])
@pytest.mark.parametrize("times", [4, 20])
def test_drafts_that_pay_are_not_given_up_because_the_machine_was_busy_for_a_moment(early, times):
    """Passes took so many times as long for sixteen steps, soon after the first."""
    plan, one = planner(FLAT), [lambda nodes: min(nodes, 1)]
    play(plan, one, early)
    play(plan, one, 16, true=Costs(FLAT.rows, tuple(times * seconds for seconds in FLAT.seconds)))
    assert sum(map(any, play(plan, one, 60))) >= 50


@pytest.mark.parametrize("late", range(6))
def test_what_it_takes_to_begin_is_noted_though_few_steps_are(late):
    """Of short steps behind a thought that took long, one in some is."""
    short = Costs((1, 64), (1e-4, 1e-4))
    plan = planner(short)
    play(plan, [always], 100 + late, drafting=1e-5)
    plan.shares, plan.drafting, plan.again, plan.thought = {0: 0}, False, plan.steps, 1e-4
    plan.losses.trial = lambda *_, **__: False
    play(plan, [always], 1, drafting=1e-5)
    assert plan.drafting
    assert plan.every > 1
    assert [(note.timed, note.steps) for note in plan.notes] == [(False, 1)]


def test_no_more_than_the_room():
    for room in (0, 1, 5, 40):
        assert all(sum(shares) <= room for shares in play(planner(FLAT), [always] * 3, 60, room=room))
    for lesson, room in ((0, 2), (4, 11)):  # less than a draft for each
        plan = planner(FLAT, lesson=lesson)
        play(plan, [never] * 3, 60, drafting=0.3)
        plan.losses.of(3).vain = 0.0
        history = play(plan, [never] * 3, 400, drafting=0.3, room=room)
        assert all(sum(shares) <= room for shares in history)
        assert {share for shares in history for share in shares} & {1, 2, 3} <= {*range(max(lesson, 1), 4)}


def test_drafting_is_a_line():
    found = Line()
    for nodes in (2, 4, 7, 3) * 50:
        found.learn(nodes, 0.5 + 0.25 * nodes)
    assert found.found() == pytest.approx((0.5, 0.25), abs=0.05)
    same = Line()
    same.learn(4, 2.0)
    assert same.found() == pytest.approx((0.4, 0.4))  # a draft costs as much as a level, where one length was seen


def test_what_is_held_up_is_not_believed_and_what_runs_free_is():
    found = Line()
    for _ in range(20):
        found.learn(1, 1.0)
    assert found.learn(1, 50.0) == pytest.approx(1.5)
    assert sum(found.found()) < 1.05
    for _ in range(4):
        found.learn(1, 0.5)
    assert sum(found.found()) < 0.75


def test_what_drafts_add_is_told_from_what_every_step_takes():
    toll = Toll()
    for _ in range(30):
        toll.rested(4, 2.0)
        toll.drafted(4, 3, 2, 3.0, 2.5)
    assert toll.without(4) == toll.without(100) == 2.0
    assert sum(toll.line(2)) + toll.line(2)[1] == pytest.approx(3.5)
    toll.drafted(4, 3, 2, 3.0, 1.5)
    assert toll.without(4) == 1.5  # a step with drafts was done with all else in that time


def test_the_first_drafts_of_a_size_are_not_believed_where_later_ones_of_another_are_known():
    toll = Toll()
    toll.rested(4, 2.0)
    for _ in range(2):
        toll.drafted(4, 4, 1, 30.0, 2.0)
    assert sum(toll.line(4)) == pytest.approx(30.0, rel=0.2)  # all that is known
    for _ in range(20):
        toll.drafted(4, 1, 1, 3.0, 2.0)
    assert sum(toll.line(1)) == pytest.approx(3.0, rel=0.2)
    assert sum(toll.line(4)) == 2 * sum(toll.line(1))  # as nothing is known of so many, the root of how many more


def test_what_drafts_of_many_add_is_enough_for_few():
    toll = Toll()
    toll.rested(16, 2.0)
    for _ in range(20):
        toll.drafted(16, 16, 1, 3.0, 2.0)
    assert toll.line(1) == toll.line(16)


def test_what_may_be_large_is_not_kept_until_the_next_decision():
    """A context, whose drafter has a state, and the distributions that a draft was drawn from: a vocabulary a node."""
    plan = planner(FLAT)
    play(plan, [always] * 2, 30)
    plan.again, batch = plan.steps + 10, [replace(CONTEXT, id=i) for i in range(2)]
    shares = plan.share(batch, 100)
    drafts = [Draft.chain([0] * share, q=(Dist.point(0),) * share) for share in shares]
    plan.observe(batch, drafts, [Turn((Emission(0, ""),), (0,))] * 2, Spent(0.1, 1.0, sum(shares) + 2))
    note = plan.notes[-1]
    assert [len(draft) for draft in note.drafts] == shares == [8, 8]
    assert all(draft.q is None for draft in note.drafts)
    assert not any(context in kept for kept in note if isinstance(kept, list) for context in batch)


def test_nodes_are_counted_from_the_likeliest():
    """Of a tree kept level by level the third node is the second likeliest, as a smaller draft would have it."""
    plan = planner(FLAT)
    tree = Draft((1, 2, 3), (-1, -1, 0), confidence=(0.9, 0.1, 0.8))
    while not any(plan.share([CONTEXT], 100)):
        plan.observe([CONTEXT], [Draft()], [Turn((Emission(0, ""),), (0, 1, 2))], Spent(0.0, 1.0, 1))
    plan.now = {CONTEXT.id: 3}
    both = Turn((Emission(0, ""),) * 3, (0, 1, 2, 3, 5), 3, 2)  # of nodes 0 and 2
    plan.observe([CONTEXT], [tree], [both], Spent(0.1, 1.0, 4))
    plan._settle()
    assert plan.everybody.worth[:3] == [1.0, 1.0, 0.0]


def test_at_least_one_node():
    with pytest.raises(ConfigError, match="at least 1"):
        AutoPlanner.Options(0)


def test_a_trial_asks_a_few_of_many_requests():
    """All of them would learn hardly more about each other, at four times the cost."""
    plan = planner(STEEP)
    history = play(plan, [never] * 16, 3000)
    trials = [shares for shares in history[-2800:] if any(shares)]
    assert trials
    assert {sum(shares) for shares in trials} <= {1, 2, 3, 4}


def test_of_more_requests_than_before_it_is_seen_first_what_they_take_without_drafts():
    """Else what takes longer, as there are more, would not seem to be the price of drafts."""
    plan = planner(FLAT)
    assert play(plan, [always], 50)[-1] == [8]
    history = play(plan, [always] * 8, 40)
    assert not any(map(any, history[:3]))
    assert all(map(any, history[3:8]))
    assert not plan.losses.of(8).vain > 0


def test_short_steps_are_looked_at_for_longer():
    """The first few, behind others, take longer than those that follow."""
    plan = planner(Costs((1, 64), (1e-3, 1.1e-3)))
    assert play(plan, [always], 50, drafting=1e-5)[-1] == [8]
    history = play(plan, [always] * 8, 40, drafting=1e-5)
    assert not any(map(any, history[:9]))
    assert all(map(any, history[9:14]))


def test_one_request_fewer_for_a_moment_is_no_reason_to_draft():
    """Whoever ends is followed by another, and to start costs reading what was written; half as many are a reason."""
    kinked = Costs((1, 8, 9, 64), (1.0, 1.01, 3.0, 100.0))  # what is free beside seven requests is not beside eight
    plan = planner(kinked)
    play(plan, [always] * 2, 200)
    play(plan, [always] * 4, 10)
    play(plan, [always] * 8, 200)
    batch = [replace(CONTEXT, id=i) for i in range(8)]
    decided = []
    for count in (8, 7, 4):
        plan.share(batch[:count], 100)
        decided.append(any(plan.shares.values()))
    assert decided == [False, False, True]


@pytest.mark.parametrize(("slope", "least", "most"), [(0.01, 0.0, 0.1), (0.3, 0.3, 0.6), (3.0, 0.7, 0.9)])
def test_the_dearer_a_row_the_more_a_node_must_promise(slope, least, most):
    plan = planner(Costs((1, 64), (1.0, 1.0 + 63 * slope)))
    play(plan, [lambda nodes: min(nodes, 1)] * 2, 300)
    assert least <= plan.bar.chance <= most


@pytest.mark.parametrize(("heeded", "temperature", "least"), [(True, 0.0, 4), (True, 1.0, 1), (False, 0.0, 1)])
def test_who_leaves_out_what_does_not_pay_is_asked_for_more(heeded, temperature, least):
    plan = planner(FLAT)
    plan.bar.heeded = heeded
    batch = [replace(CONTEXT, sampling=Sampling(temperature=temperature))]
    shares = [plan.share(batch, 100)[0]]
    while not any(shares):
        turn = Turn((Emission(0, ""),), (0, 1), 0, 0)
        plan.observe(batch, [Draft()], [turn], Spent(0.0, 1.0, 1))
        shares.append(plan.share(batch, 100)[0])
    assert shares[-1] == least


@pytest.mark.parametrize("room", [1, 2, 3])
def test_who_leaves_out_what_does_not_pay_is_asked_for_what_there_is_room_for(room, monkeypatch):
    monkeypatch.setitem(globals(), "CONTEXT", replace(CONTEXT, sampling=Sampling(temperature=0)))
    plan = planner(FLAT)
    plan.bar.heeded = True
    history = play(plan, [always], 100, room=room)
    assert max(map(sum, history)) == room


@pytest.mark.parametrize(
    ("drafter", "heeded"),
    [
        ("draft-model:model=toy:100,tree=opt-tree,depth=2", True),
        ("draft-model:model=toy:100,tree=chain,depth=2", False),
        ("several:of=[(draft-model:model=toy:100,tree=opt-tree,depth=2),ngram]", False),
        ("ngram", False),
    ],
)
def test_a_drafter_that_stands_in_another_one_is_asked_as_ever(drafter, heeded):
    assert Toy(drafter=drafter, planner="auto").build().engine.members.planner.inner.bar.heeded is heeded
