"""Drafts and no drafts, stretch beside stretch: what they are worth by the clock, and when to look again."""

from itertools import cycle, islice
from math import exp, inf, log

import numpy as np
import pytest

from forerun.drafting.duels import FEWEST, MOST, PAIRS, SKIPPED, STRETCH, WHOLE, Duels


def play(duels, stretches, requests=4, worth=1.2, *, machine=(1.0,), length=WHOLE, first=1.0, held_up=1.0):
    """Stretches by turns; those with drafts bring two tokens a request, and take 2 / `worth` steps."""
    for speed in islice(cycle(machine), stretches):
        drafts = not duels.drafts if duels.past else False
        for step in range(length):
            seconds = (2 / worth if drafts else 1.0) * speed * (first if step < SKIPPED else 1.0)
            seconds *= held_up if step == SKIPPED + 3 else 1.0
            duels.add(drafts, requests, requests * (2 if drafts else 1), seconds)


@pytest.mark.parametrize("worth", [0.8, 1.05, 1.3])
def test_what_drafts_are_worth_is_found_on_a_machine_that_changes_by_half(worth):
    duels, speeds = Duels(), np.repeat(np.random.default_rng(0).uniform(1, 2, 50), 10)
    play(duels, 400, worth=worth, machine=speeds)
    lead, error, weight, known = duels.lead(4, 0.0)
    assert lead == pytest.approx(log(worth), abs=0.02)
    assert error < 0.025
    assert weight == pytest.approx(2 / (PAIRS + 2))
    assert known == PAIRS


def test_who_has_rested_and_a_step_that_is_held_up_do_not_count():
    duels = Duels()
    play(duels, 20, first=5.0, held_up=9.0)
    assert {round(exp(pair.ratio), 9) for pair in duels.pairs} == {1.2}
    assert len(duels.pairs) == 19


def test_a_short_stretch_is_no_evidence():
    duels = Duels()
    play(duels, 20, length=STRETCH - 1)
    assert not duels.pairs
    play(duels, 20, length=STRETCH)
    assert duels.pairs


def test_pairs_count_the_less_the_more_their_requests_differ():
    duels = Duels()
    play(duels, 40, requests=4)
    same, five, six, seven, (twice, _, weight, known) = (duels.lead(n, -1.0) for n in range(4, 9))
    assert -1 < seven[0] < six[0] < five[0]
    assert same[0] == pytest.approx(log(1.2), abs=0.1)
    assert (twice, weight, known) == (-1.0, 1.0, 0)


def test_opinions_of_one_request_weigh_more_than_those_of_many():
    one, many = Duels(), Duels()
    play(one, 10, requests=1)
    play(many, 10, requests=16)
    assert one.lead(1, -0.5)[0] < -0.3 < 0.0 < many.lead(16, -0.5)[0]


def test_the_sides_take_turns_until_one_is_sure_and_then_seldom():
    duels, lengths, steps, drafts = Duels(), list[int](), 0, False
    while steps < 20000:
        verdict = duels.judge(steps, 4, 0.0, 0.0, bearable=True)
        drafts = verdict.drafts
        held = min(verdict.steps, 16) if not verdict.other else verdict.steps
        for _ in range(held):
            duels.add(drafts, 4, 8 if drafts else 4, (2 / 1.1 if drafts else 1.0))
        lengths += [held] if verdict.other else []
        steps += held
    assert drafts
    assert {*lengths} == {STRETCH}
    assert sum(lengths) < 0.05 * steps + 5 * WHOLE


def test_a_look_follows_on_a_whole_stretch_and_lasts_until_it_is_a_pair():
    duels = Duels()
    play(duels, 1, length=WHOLE - 1)
    assert duels.judge(0, 4, -0.05, 0.1, bearable=True) == (False, False, 1)
    duels.add(False, 4, 4, 1.0)
    assert duels.judge(1, 4, -0.05, 0.1, bearable=True) == (False, True, STRETCH)
    play(duels, 1, length=STRETCH - 3)  # three steps read prompts
    assert duels.judge(15, 4, -0.05, 0.1, bearable=True) == (False, True, 3)
    assert not duels.pairs
    assert not duels.judge(18, 4, -0.05, 0.1, bearable=True).drafts  # they do again


def test_looks_that_bring_nothing_become_rare():
    duels, looks, step = Duels(), 0, 0
    while step < 4000:
        verdict = duels.judge(step, 64, -0.05, 0.1, bearable=True)
        looks += verdict.other
        for _ in range(1 if verdict.other else min(verdict.steps, 16)):  # the others of a look read prompts
            duels.add(verdict.drafts, 64, 64, 1.0)
        step += min(verdict.steps, 16)
    assert 4 <= looks <= 40


def test_who_is_sure_by_opinion_does_not_look_at_once():
    for opinion in (inf, 1.0, -1.0, -3.0):
        duels = Duels()
        play(duels, 1)
        assert not duels.judge(0, 4, opinion, 0.0, bearable=True).other


def test_losses_are_heard_until_the_clock_knows_better():
    duels = Duels()
    assert not duels.judge(0, 4, 0.5, 0.0, bearable=False).pays
    play(duels, 60)
    assert duels.judge(9000, 4, 0.5, 0.0, bearable=False).pays
    worse = Duels()
    play(worse, 60, worth=0.9)
    assert not worse.judge(9000, 4, 0.5, 0.0, bearable=True).pays


def test_less_is_asked_of_drafts_the_more_is_known():
    little, duels = log(1.04), Duels()
    assert not duels.judge(0, 4, little, log(1.08), bearable=True).pays
    play(duels, 100, worth=1.04)
    assert duels.judge(9000, 4, little, log(1.08), bearable=True).pays


def test_pauses_are_longer_where_more_is_at_stake():
    def pause(worth):
        duels = Duels()
        play(duels, 100, worth=worth)
        duels.patience = MOST
        duels.judge(10**6, 4, log(worth), 0.0, bearable=True)
        return duels.next - 10**6

    assert FEWEST <= pause(1.03) < pause(1.1) < pause(1.5)
