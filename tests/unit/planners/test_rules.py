"""Each planner's own rule: a script of acceptances gives the published sequence of lengths."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from forerun.drafting.worth import reach
from forerun.errors import ConfigError
from forerun.planners.adaeagle import AdaEaglePlanner
from forerun.planners.asymmetric import AsymmetricPlanner
from forerun.planners.bass import BassPlanner
from forerun.planners.contract import REMEMBERED, Memory, Spent, within
from forerun.planners.eesd_thompson import EesdThompsonPlanner
from forerun.planners.fixed import FixedPlanner
from forerun.planners.schedule import SchedulePlanner
from forerun.planners.smartspec import SmartSpecPlanner
from forerun.planners.tetris import TetrisPlanner
from forerun.rng import CounterRng
from forerun.testing.toy import Ask, Toy
from forerun.types import Bar, Context, Costs, Dist, Draft, Emission, Outcome, Output, Sampling, Turn, Verdict, Work

FLAT = Costs((1, 64), (1.0, 1.1))
STEEP = Costs((1, 64), (1.0, 64.0))


class Setup:
    """What planners read of one."""

    hidden_size = 7

    def __init__(self, costs=FLAT):
        self.costs, self.bar = lambda: costs, Bar()


def built(planner, costs=FLAT, **options):
    return planner(planner.Options(**options), Setup(costs))


def batch_of(count):
    return [Context(i, [0, 1], 2, Sampling(), CounterRng(i)) for i in range(count)]


def turn(accepted, drafted, depth=None):
    emissions = (Emission(0, ""),) * (accepted + 1)
    return Turn(emissions, tuple(range(2 + accepted)), drafted, drafted if depth is None else depth)


def play(plan, steps, drafting=0.0, batch=None):
    """Shares of steps in which steps[i] are accepted, of everybody or of each, and at most what was drafted."""
    history = []
    for step in steps:
        now = batch or batch_of(len(step) if isinstance(step, tuple) else 1)
        shares = plan.share(now, 1000)
        history.append(shares if len(shares) > 1 else shares[0])
        accepted = step if isinstance(step, tuple) else [step]
        turns = [turn(min(a, share), share) for a, share in zip(accepted, shares, strict=True)]
        drafts = [Draft.chain([0] * share) for share in shares]
        plan.observe(now, drafts, turns, Spent(drafting * max(shares), 1.0, sum(shares) + len(shares)))
    return history


ALL = 99


def test_schedule_adds_two_or_takes_one():
    plan = built(SchedulePlanner)
    assert play(plan, [ALL, ALL, 3, 0, ALL, 0]) == [5, 7, 9, 8, 7, 9]
    assert play(built(SchedulePlanner, start=2, most=5), [ALL, ALL, ALL, 0, 0, 0, 0, 0, 0]) == [
        2,
        4,
        5,
        5,
        4,
        3,
        2,
        1,
        1,
    ]


def test_schedule_learns_nothing_of_a_draft_that_was_short():
    plan, batch = built(SchedulePlanner), batch_of(1)
    for short in (turn(2, 2), turn(0, 0)):
        plan.share(batch, 100)
        plan.observe(batch, [Draft()], [short], Spent(0, 1, 1))
        assert plan.share(batch, 100) == [5]


def test_requests_have_lengths_of_their_own():
    for planner, expected in ((SchedulePlanner, [9, 3]), (AsymmetricPlanner, [8, 0])):
        plan = built(planner)
        play(plan, [(ALL, 0)] * 2)
        assert plan.share(batch_of(2), 100) == expected


def test_asymmetric_rises_faster_than_it_falls():
    # 8 of 8 count 9; then 9 + .65 (2 - 9) = 4.45, 4.45 + .65 (1 - 4.45) = 2.2075, 2.2075 + 1.3 (4 - 2.2075) = 4.54
    assert play(built(AsymmetricPlanner), [ALL, 2, 1, ALL, 0]) == [8, 8, 5, 3, 5]


def test_asymmetric_pauses_and_tries():
    history = play(built(AsymmetricPlanner), [0, *[0] * 31, ALL, *[ALL] * 14, ALL, 0])
    assert history[:1] == [8]
    assert [step for step, nodes in enumerate(history) if nodes][:3] == [0, 16, 32]
    assert history[16] == history[32] == 2
    assert history[33] == 4  # 1.3 * 3, rounded up


def test_bass_follows_the_best_of_the_batch():
    plan = built(BassPlanner)
    steps = [(ALL, 0), (3, 2), (3, 2), (2, 1), (6, 0), (ALL, 0), (0, 1)]
    lengths = [shares[0] for shares in play(plan, steps)]
    # 7 + 2; 9 - ceil(.9); 8 - ceil(.8) - 1; 6 - 1 - 1; all four are accepted: + 2; + 2
    assert lengths == [7, 9, 8, 6, 4, 6, 8]
    assert plan.length == 7


def test_bass_keeps_what_was_accepted():
    plan = built(BassPlanner)
    assert [shares[0] for shares in play(plan, [(0, 6), (0, 6), (0, 5)])] == [7, 6, 8]
    assert built(BassPlanner, start=31).length == 31
    assert [shares[0] for shares in play(built(BassPlanner, start=31), [(ALL, 0), (ALL, 0)])] == [31, 32]


def test_bass_learns_nothing_from_silence():
    plan, batch = built(BassPlanner), batch_of(1)
    plan.observe(batch, [Draft()], [turn(0, 0)], Spent(0, 1, 1))
    plan.observe(batch, [Draft()], [turn(2, 2)], Spent(0, 1, 3))
    assert plan.share(batch, 100) == [7]


def test_thompson_draws_what_it_believes():
    lengths = play(built(EesdThompsonPlanner, most=64), [ALL] * 40)
    assert min(lengths[20:]) > max(1, np.mean(lengths[:3]))
    refused = play(built(EesdThompsonPlanner), [0] * 60)
    assert np.mean(refused[40:]) < 1.2
    assert min(refused) == 1


def test_thompson_draws_the_same_for_a_seed():
    first, again = (play(built(EesdThompsonPlanner), [3, 0, ALL, 1] * 5) for _ in range(2))
    assert first == again
    batch = [replace(batch_of(1)[0], rng=CounterRng(seed)) for seed in range(200)]
    lengths = [built(EesdThompsonPlanner).share([one], 100)[0] for one in batch]
    assert 1 < np.mean(lengths) < 16
    assert len(set(lengths)) > 5


def test_thompson_knows_accepted_tokens_and_first_refusals():
    plan, batch = built(EesdThompsonPlanner), batch_of(1)
    plan.share(batch, 100)
    for accepted, drafted in ((3, 5), (2, 2), (0, 4)):
        plan.observe(batch, [Draft()], [turn(accepted, drafted)], Spent(0, 1, 1))
    assert (plan.kept(batch[0]).accepted, plan.kept(batch[0]).refused) == (8, 3)


def goodput(plan, count, k, each=0.0):
    a = plan.acceptance
    return count * (1 - a ** (k + 1)) / (1 - a) / (plan.costs.of(count * (k + 1)) + k * each)


@pytest.mark.parametrize("count", [1, 4, 16])
def test_smartspec_has_the_best_goodput(count):
    costs = Costs((1, 8, 64), (1.0, 1.2, 4.0))
    plan = built(SmartSpecPlanner, costs)
    play(plan, [(2,) * count] * 20, drafting=0.02)
    best = max(range(17), key=lambda k: goodput(plan, count, k, plan.each) * (1.1 if k == 0 else 1))
    assert plan.share(batch_of(count), 1000) == [best] * count


def test_smartspec_drafts_less_under_load_and_nothing_in_the_end():
    plan = built(SmartSpecPlanner, Costs((1, 16, 64), (1.0, 1.1, 5.0)))
    lengths = [plan.share(batch_of(count), 10000)[0] for count in (1, 2, 4, 8, 16, 64)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > 3
    assert lengths[-1] == 0
    assert built(SmartSpecPlanner, STEEP).share(batch_of(1), 100) == [0]


def test_smartspec_gives_up_and_tries_again():
    history = play(built(SmartSpecPlanner), [0] * 400, drafting=0.05)
    assert history[0] > 3
    assert 0 in history
    gone = history.index(0)
    assert any(history[gone:])
    assert np.mean([nodes > 0 for nodes in history]) < 0.5


def test_smartspec_has_one_length_that_fits():
    plan = built(SmartSpecPlanner)
    assert plan.share(batch_of(3), 8) == [2, 2, 2]
    assert plan.share([], 8) == []


def sure(*confidence, parents=None):
    tokens = tuple(range(len(confidence)))
    return Draft(tokens, parents or tuple(range(-1, len(tokens) - 1)), None, confidence, "")


def test_tetris_takes_the_most_promising_of_all():
    plan = built(TetrisPlanner, nodes=2, extra=2)
    assert plan.share(batch_of(3), 100) == [4, 4, 4]
    drafts = [sure(0.9, 0.9, 0.9, 0.9), sure(0.5, 0.5, 0.9, 0.9), sure(0.95, 0.2, 1.0, 1.0)]
    assert [len(draft) for draft in plan.cut(batch_of(3), drafts)] == [4, 1, 1]
    few = [sure(0.1, 0.1), sure(0.1)]
    assert plan.cut(batch_of(2), few) == few


def test_tetris_never_tears_a_tree():
    rng = np.random.default_rng(0)
    for _ in range(200):
        drafts = []
        for _ in range(3):
            size = int(rng.integers(1, 9))
            parents = tuple(int(rng.integers(-1, node)) for node in range(size))
            drafts.append(sure(*rng.choice([0.2, 0.5, 1.0], size).tolist(), parents=parents))
        cut = built(TetrisPlanner, nodes=2).cut(batch_of(3), drafts)  # DraftError where it tears
        assert sum(map(len, cut)) == min(6, sum(map(len, drafts)))


def test_tetris_does_not_look_at_what_was_drawn():
    q = Dist(np.array([0.9, 0.1]))
    plan = built(TetrisPlanner, nodes=1)
    lengths = [
        [len(d) for d in plan.cut(batch_of(2), [Draft.chain(tokens, "", (q, q)), Draft.chain((0, 0), "", (q, q))])]
        for tokens in ((0, 0), (1, 1))
    ]
    assert lengths[0] == lengths[1] == [1, 1]
    assert reach(sure(0.5, 0.8, 0.7, parents=(-1, -1, 0)), (0.5, 0.8, 0.7)) == [0.5, 0.5, 0.35]


PREDICTOR = {"layer": -1, "weight": [1.0, 0, 0, 0, 0, 0, 2.0], "bias": 0.25, "usual": 3.0}


@pytest.fixture
def ada(tmp_path):
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(PREDICTOR))
    return built(AdaEaglePlanner, file=str(path), more=0.0, most=9)


def outcome(state, path=(), nodes=2):
    states = torch.zeros(2 + nodes, 7)
    states[2 + path[-1] if path else 1] = torch.tensor(state)
    draft = Draft.chain([0] * nodes)
    return Outcome(
        Work(0, (0,) * (2 + nodes)), Output(torch.zeros(0, 3), (), (), hidden={-1: states}), draft, Verdict(path, 0)
    )


def test_adaeagle_reads_the_newest_state(ada):
    batch = batch_of(2)
    assert ada.hidden == (-1,)
    assert ada.share(batch, 100) == [3, 3]
    ada.see(batch, [outcome([4.0, 9, 9, 9, 9, 9, 0.5]), outcome([1.0, 0, 0, 0, 0, 0, 0.5], (0, 1))])
    assert ada.share(batch, 100) == [5, 2]
    ada.see(batch, [outcome([-9.0, 0, 0, 0, 0, 0, 0]), outcome([99.0, 0, 0, 0, 0, 0, 0])])
    assert ada.share(batch, 100) == [0, 9]
    ada.see(batch, [Outcome(Work(0, (0,)), Output(torch.zeros(0, 3), (), ()))] * 2)  # still reading the prompt
    assert ada.share(batch, 100) == [0, 9]


def test_adaeagle_refuses_what_is_no_predictor(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match="forerun train lengths"):
        built(AdaEaglePlanner, file=str(tmp_path / "x.json"))
    with pytest.raises(ConfigError, match="another model's"):
        built(AdaEaglePlanner, file="toy:0:6")


def test_shares_are_given_in_the_order_of_the_batch():
    assert within([3, 3, 3], 7) == [3, 3, 1]
    assert within([3, 3], 0) == [0, 0]


def test_memory_forgets_the_oldest():
    memory = Memory(list)
    first = batch_of(1)[0]
    memory.of(first).append(1)
    assert memory.of(first) == [1]
    for number in range(1, REMEMBERED + 1):
        memory.of(replace(first, id=number))
    assert memory.of(first) == []


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        (SchedulePlanner, {"start": 0}),
        (SchedulePlanner, {"start": 9, "most": 8}),
        (AsymmetricPlanner, {"probe": 0}),
        (AsymmetricPlanner, {"down": 0}),
        (BassPlanner, {"start": 33}),
        (EesdThompsonPlanner, {"refused": 0}),
        (SmartSpecPlanner, {"most": 0}),
        (TetrisPlanner, {"nodes": 0}),
        (AdaEaglePlanner, {"most": 0}),
    ],
)
def test_limits_are_said(planner, options):
    with pytest.raises(ConfigError, match="give"):
        planner.Options(**options)


def test_adaeagle_is_told_by_the_engine():
    rig = Toy(drafter="draft-model:model=toy:100,depth=3", planner="adaeagle").build()
    planner = rig.engine.members.planner.inner
    number = rig.add(Ask((0, 1, 2), Sampling(max_tokens=20, seed=5)))
    drafted = set()
    while rig.engine.busy:
        request = rig.engine.requests[number]
        rig.step()
        read = request.tokens[:-1]  # the newest has not been read
        if request.context is not None and rig.engine.busy:
            state = np.zeros(7)
            state[read[-2]], state[4 + read[-1]] = 1, 1
            assert planner.kept(request.context).tokens == pytest.approx(planner.head(state))
        drafted.add(request.stats.drafted)
    assert len(drafted) > 2


def test_fixed_says_what_a_node_must_promise():
    setup = Setup()
    plan = FixedPlanner(FixedPlanner.Options(nodes=3, bar=0.25), setup)
    assert setup.bar.chance == 0.25
    assert plan.share([None] * 3, 7) == [3, 3, 1]


@pytest.mark.parametrize("bar", [-0.1, 1.0, float("nan")])
def test_fixed_refuses_what_is_no_chance(bar):
    with pytest.raises(ConfigError, match="give a chance below 1"):
        FixedPlanner.Options(bar=bar)
