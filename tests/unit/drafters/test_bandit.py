"""A bandit over drafters on scripted ones: it finds the best, and notices when another becomes it."""

from dataclasses import dataclass, replace

import pytest
import torch

from forerun.config import Choice
from forerun.drafters import DRAFTERS
from forerun.drafters.bandit import FULL, SHARE, BanditDrafter, Clock, Tally, _Arm
from forerun.drafters.contract import SoloDrafter
from forerun.errors import ConfigError
from forerun.rng import CounterRng
from forerun.testing import Toy, laws
from forerun.types import Context, Dist, Draft, Facts, Outcome, Output, Sampling, Verdict, Work

CONTEXT = Context(0, [0, 1], 2, Sampling(), CounterRng(0))


class Scripted(SoloDrafter):
    """Drafts `right` tokens as the text goes on, and then a wrong one; nothing where `right` is None."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        right: int | None = 0
        draws: bool = False

    def __init__(self, options, setup):
        self.options, self.right, self.asked = options, options.right, 0

    def propose_one(self, context, budget):
        self.asked += 1
        if self.right is None:
            return Draft()
        first = len(context.tokens)
        tokens = [*((first + i) % 7 for i in range(self.right)), 9]
        return Draft.chain(tokens, q=(Dist.point(9),) * len(tokens) if self.options.draws else None)


class Scene:
    """One request whose text counts up modulo seven, and a bandit over scripted drafters."""

    def __init__(self, rights, prices, draws=()):
        made = [Scripted(Scripted.Options(right, i in draws), None) for i, right in enumerate(rights)]
        names = tuple(map(str, range(len(made))))
        setup = type("Setup", (), {"open_drafter": lambda _, spelled, __: made[int(spelled)]})()
        self.bandit, self.made = BanditDrafter(BanditDrafter.Options(names, tuple(prices)), setup), made
        self.context = self.begin()
        self.time = self.tokens = 0.0

    def begin(self, **changes):
        own = replace(CONTEXT, tokens=[0, 1], **changes)
        return replace(own, state=self.bandit.start(own))

    def step(self, budget=16):
        """One step; whose draft was verified."""
        before = [one.asked for one in self.made]
        draft, *_ = self.bandit.propose([self.context], [budget])
        by, text = self.context.state.by, self.context.tokens
        path = []
        for node, token in enumerate(draft.tokens):
            if token != (len(text) + node) % 7:
                break
            path.append(node)
        token = (len(text) + len(path)) % 7
        outcome = Outcome(Work(0, (0,)), Output(torch.zeros(0, 1), (), ()), draft, Verdict(tuple(path), token))
        self.bandit.observe([self.context], [outcome])
        text += [*(draft.tokens[node] for node in path), token]
        asked = zip(self.made, before, self.bandit.options.prices, strict=True)
        self.time += 1 + sum((one.asked - count) * price for one, count, price in asked)
        self.tokens += len(path) + 1
        return by

    def play(self, steps):
        return [self.step() for _ in range(steps)]


@pytest.mark.parametrize(("rights", "best"), [((1, 4, 0), 1), ((0, 1, 3), 2), ((5, 4, 4), 0)])
def test_the_best_drafts_nearly_always(rights, best):
    scene = Scene(rights, (0.05, 0.05, 0.05))
    scene.play(20)
    assert scene.play(200).count(best) == 200  # trials are compared with the text, not verified
    assert scene.tokens / scene.time > 0.97 * (rights[best] + 1) / 1.05


def test_tokens_are_weighed_against_what_asking_costs():
    scene = Scene((2, 3), (0.0, 1.5))
    assert scene.play(60)[20:].count(0) == 40
    dear = Scene((0, 1), (3.0, 3.0))
    assert dear.play(60)[20:] == [-1] * 40  # nobody is worth it


def test_who_has_nothing_is_followed_by_the_next():
    scene = Scene((6, 2), (0.0, 0.1))
    scene.play(10)
    scene.made[0].right = None
    assert scene.play(3) == [1] * 3
    scene.made[0].right = 6
    assert scene.play(1) == [0]  # it is asked first still


@pytest.mark.parametrize("draws", [(), (0, 1)])
def test_nobody_is_given_up(draws):
    """After 500 steps in which it was wrong the other one has become the best."""
    scene = Scene((0, 2), (0.02, 0.02), draws)
    assert scene.play(500).count(1) > 450
    scene.made[0].right, scene.made[1].right = 5, 0
    scene.play(300)
    assert scene.play(50).count(0) > 40


@pytest.mark.parametrize("draws", [(), (0, 1)])
def test_trials_cost_a_hundredth(draws):
    """Against the best alone; what the first drafts cost stays."""
    scene, alone = Scene((0, 3), (0.3, 0.3), draws), Scene((3,), (0.3,))
    scene.play(30), alone.play(30)
    scene.time = scene.tokens = alone.time = alone.tokens = 0.0
    scene.play(3000), alone.play(3000)
    ratio = (scene.tokens / scene.time) / (alone.tokens / alone.time)
    assert 1 - 1.2 * SHARE < ratio < 1
    assert scene.made[0].asked > 10


def test_a_text_says_nothing_of_drawn_tokens():
    scene = Scene((3, 3), (0.0, 0.0), draws=(1,))
    scene.play(20)
    assert scene.made[1].asked == 1  # to verify another one is not paid for yet
    assert scene.context.state.arms[1].tally.asked == 0


def test_a_new_request_begins_with_what_its_scope_knows():
    scene = Scene((0, 4), (0.1, 0.1))
    scene.play(50)
    scene.context = scene.begin(id=1)
    assert scene.play(3) == [1] * 3
    scene.context = scene.begin(id=2, scope="another")
    assert scene.step() == 0


def test_nothing_is_asked_without_a_budget():
    scene = Scene((1, 2), (0.1, 0.1))
    assert scene.step(budget=0) == -1
    assert [one.asked for one in scene.made] == [0, 0]


def test_a_trial_goes_on_over_several_steps():
    arm = _Arm(CONTEXT, Tally(1.0, 1.0), trial=Draft.chain([3, 4, 5]))
    assert arm.follow([3]) is None
    assert arm.follow([4, 9]) == 2


def test_a_trial_ends_with_its_draft():
    arm = _Arm(CONTEXT, Tally(1.0, 1.0), trial=Draft((1, 2, 3), (-1, -1, 1)))
    assert arm.follow([2]) is None
    assert arm.follow([3, 5]) == 2


def test_an_opinion_moves_from_the_one_before():
    tally = Tally(1.0, 2.0)
    assert tally.opinion((0.5, 3.0)) == (0.5, 3.0)
    tally.learn(None), tally.learn(1)
    assert tally.opinion((0.5, 3.0)) == ((1 + 1) / 4, (1 + 6) / 3)


def test_the_clock_tells_prices_in_steps(monkeypatch):
    clock = Clock(2)
    assert clock.prices == [0, 0]
    clock.since = 10.0
    monkeypatch.setattr("forerun.drafters.bandit.perf_counter", lambda: 10.5)
    clock.judged()
    clock.asked(1, 0.1)
    assert clock.prices == [0, pytest.approx(0.2)]


def test_what_is_measured_drafts_as_well():
    scene = Scene((0, 3), ())
    scene.bandit.options = replace(scene.bandit.options, prices=())
    scene.context.tokens[:] = [0, 1]
    draft, *_ = scene.bandit.propose([scene.context], [8])
    assert len(draft)
    assert scene.bandit.clock.since > 0


def test_savings_have_an_end():
    scene = Scene((3, 3), (9.0, 0.0))
    scene.play(2000)
    assert max(scene.bandit.scopes[""].saved) <= FULL


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name not in ("bandit", "none")])
def test_beside_every_other_drafter_texts_stay(name):
    one = Choice("drafter", name, DRAFTERS[name], DRAFTERS[name].toy()).spelling
    other = "draft-model:model=toy:101,depth=2"
    laws.greedy_equals_greedy(Toy(drafter=f"bandit:of=[({one}),({other})],prices=[0,0.1]"))


@pytest.mark.parametrize("prices", [(0.1,), (0.1, -1.0), (0.1, float("nan"))])
def test_prices_are_one_each(prices):
    with pytest.raises(ConfigError, match=r"give each a number of 0 or more"):
        BanditDrafter.Options(("ngram", "jacobi"), prices)


def test_somebody_has_to_draft():
    with pytest.raises(ConfigError, match="name some"):
        BanditDrafter.Options(())
