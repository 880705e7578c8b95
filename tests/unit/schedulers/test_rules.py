"""What each scheduler is for, on requests that are made up."""

from dataclasses import replace

import pytest

from forerun.build import setup_for
from forerun.config import choose
from forerun.errors import ConfigError
from forerun.schedulers import SCHEDULERS, fair
from forerun.schedulers.contract import Candidate
from forerun.testing import Ask, BushyDrafter, Toy
from forerun.types import Costs, Sampling

COSTS = Costs(
    (1, 100), (1.0, 10.9), (0.001, 0.001), 0
)  # a second and a tenth per row, a thousandth per token of context


def opened(spelled, slots=2):
    toy = Toy().resized(max_requests=slots)
    choice = choose(SCHEDULERS, spelled)
    return choice.member(choice.options, replace(setup_for(toy.config, toy.model), costs=lambda: COSTS))


def request(number, pending=1, **said):
    return Candidate(
        **{"id": number, "arrival": number, "pending": pending, "running": True, "prompt": (0,) * 8, **said}
    )


def counts(picks):
    return {p.id: p.count for p in picks}


def test_sarathi_fills_a_step_up_to_its_target():
    decodes = [request(i, prompt=(0,) * 100) for i in range(2)]
    long = request(2, pending=500, prompt=(0,) * 500)
    found = counts(opened("sarathi:step_ms=4000,least=1").pick([*decodes, long], 512, 0.0))
    rows = sum(found.values())
    assert found[0] == found[1] == 1
    assert COSTS.of(rows, 198, 3) <= 4.0 < COSTS.of(rows + 1, 198, 3)
    assert counts(opened("sarathi:step_ms=1,least=7").pick([*decodes, long], 512, 0.0))[2] == 7
    assert counts(opened("sarathi:step_ms=1").pick([*decodes, long], 2, 0.0)) == {0: 1, 1: 1}


def test_steps_of_sarathi_are_as_long_as_nobody_sees():
    """Four passes of one token, but no less than a floor; where a time is asked for, that."""
    assert COSTS.of(1) == 1.0  # seconds
    targets = {"sarathi": 4.0, "sarathi:floor_ms=9000": 9.0, "sarathi:floor_ms=9000,step_ms=20": 0.02}
    assert {name: opened(name).target for name in targets} == targets


def test_sarathi_leaves_room_for_the_drafts_of_decodes():
    decodes = [request(i, prompt=(0,) * 100, drafted=4.5) for i in range(2)]
    long = request(2, pending=500, prompt=(0,) * 500)
    picks = opened("sarathi:step_ms=4000,least=1").pick([*decodes, long], 512, 0.0)
    plain = opened("sarathi:step_ms=4000,least=1").pick([*(c._replace(drafted=0) for c in decodes), long], 512, 0.0)
    assert counts(picks) == counts(plain) | {2: counts(plain)[2] - 9}


def read(scheduler, arrivals, room=512):
    """Steps at whose end each prompt is read, where (arrived, tokens) come one second per step."""
    left, ends, step = dict(enumerate(tokens for _, tokens in arrivals)), {}, 0
    while left:
        here = [request(i, pending=n, prompt=(0,) * arrivals[i][1]) for i, n in left.items() if arrivals[i][0] <= step]
        for pick in scheduler.pick(here, room, float(step)) if here else ():
            left[pick.id] -= pick.count
        step += 1
        ends |= {i: step for i, n in left.items() if n <= 0}
        left = {i: n for i, n in left.items() if n > 0}
    return ends


def test_sarathi_lets_short_prompts_pass_between_chunks():
    arrivals = [(0, 400), (3, 20), (7, 20), (12, 20)]
    sooner = read(opened("sarathi:step_ms=4000,least=1"), arrivals)
    by_arrival = read(opened("sarathi:step_ms=4000,least=1,patience=0"), arrivals)
    assert [sooner[i] - arrivals[i][0] for i in (1, 2, 3)] == [1, 1, 1]
    assert min(by_arrival[i] - arrivals[i][0] for i in (1, 2, 3)) > 3
    assert sooner[0] <= by_arrival[0] + 3  # what the others took, and no more


@pytest.mark.parametrize("patience", [1.0, 4.0])
def test_a_long_prompt_of_sarathi_waits_only_so_long(patience):
    scheduler = opened(f"sarathi:step_ms=4000,least=1,patience={patience}", slots=99)
    flood = [(0, 400), *((at, 30) for at in range(200) for _ in range(2))]  # more than a step can read
    ends = read(scheduler, flood)
    overtook = [scheduler._dues[i] - patience * 30 for i in range(1, len(flood)) if ends[i] < ends[0]]
    assert patience * 300 < max(overtook) < patience * 400  # tokens that were read before the last of them came
    assert read(opened("sarathi:step_ms=4000,least=1,patience=1e9", slots=99), flood)[0] > 200


def test_the_engine_says_how_much_a_request_drafts():
    rig = Toy(drafter=BushyDrafter, scheduler="sarathi").build()
    rig.add(Ask((0, 1, 2), Sampling(max_tokens=12, seed=0)))
    rig.step()
    rig.step()
    (candidate,) = rig.engine._running()
    (request,) = rig.engine.requests.values()
    assert candidate.drafted == request.stats.drafted / request.stats.steps > 0


def test_splitfuse_cuts_long_prompts_and_composes_short_ones():
    running = [request(0), request(1, pending=5), request(2, pending=50), request(3, pending=5)]
    assert counts(opened("splitfuse:tokens=16").pick(running, 512, 0.0)) == {0: 1, 1: 5, 2: 10}


def test_flover_reads_prompts_whole():
    running = [request(0), request(1, pending=5), request(2, pending=50), request(3, pending=5)]
    flover = opened("flover")
    assert counts(flover.pick(running, 56, 0.0)) == {0: 1, 1: 5, 2: 50}
    assert counts(flover.pick(running, 40, 0.0)) == {0: 1, 1: 5}
    assert counts(flover.pick(running[2:], 40, 0.0)) == {2: 40}


def test_a_step_of_priority_is_worth_its_patience():
    urgent, late = request(0, priority=-1, arrived=9.0), request(1, arrived=0.0)
    assert opened("priority:patience=10").admit([late, urgent], 20.0) == [0, 1]
    assert opened("priority:patience=8").admit([late, urgent], 20.0) == [1, 0]
    usual = [request(2), request(3, arrived=1.0)]
    taking = opened("priority")
    assert taking.yielding(usual, [request(4, priority=-1, arrived=2.0)], 3.0) == [3]
    assert taking.yielding(usual, [request(4, arrived=0.5)], 3.0) == []
    assert opened("priority:takes=false").yielding(usual, [urgent], 3.0) == []


def test_a_scope_that_comes_back_has_saved_nothing_up(monkeypatch):
    asked = opened("fair")
    busy = request(0, pending=8, scope="busy")
    asked.admit([busy], 0.0)
    asked.pick([busy], 100, 0.0)
    asked.pick([busy._replace(pending=1, written=10)], 100, 0.0)
    assert asked.served == {"busy": 8 + 2 * 10}
    asked.admit([request(1, scope="back")], 0.0)
    assert asked.served["back"] == 28
    monkeypatch.setattr(fair, "REMEMBERED", 1)
    asked.ended(request(1, scope="back"))
    assert "back" not in asked.served
    asked.ended(request(99, scope="never seen"))
    asked.ended(busy._replace(written=11))
    asked.admit([request(2, scope="next")], 0.0)
    assert asked.served["next"] == 30  # where the last one stood


def test_short_texts_go_first_and_long_ones_by_what_is_left():
    asked = opened("skippredict:patience=100")
    kinds = {"short": 4, "long": 60, "longer": 80}
    for number, (scope, length) in enumerate(list(kinds.items()) * 5):
        asked.ended(request(number, scope=scope, written=length))
    waiting = [request(i, scope=scope, limit=200) for i, scope in enumerate(("longer", "long", "short"), 20)]
    assert asked.admit(waiting, 1.0) == [22, 21, 20]
    longer, long = waiting[0]._replace(written=70), waiting[1]._replace(arrived=-200.0)
    assert asked.admit([waiting[0], longer._replace(id=30), waiting[2]], 1.0) == [22, 30, 20]
    assert asked.admit([waiting[2], long], 1.0)[0] == 21, "who waited long enough goes before"
    assert asked.yielding([waiting[0], waiting[2]], [waiting[2]._replace(id=40)], 1.0) == [20]
    assert asked.yielding([waiting[0], waiting[2]], [waiting[0]._replace(id=40)], 1.0) == []


def test_a_token_is_due_when_its_reader_gets_there():
    asked = opened("andes-qoe:first=1,pace=10,lead=2")
    ahead, slow = request(0, written=60), request(1, written=10, pace=2.0)
    assert asked.admit([ahead, slow, request(2)], 0.0) == [2, 1, 0]  # due at 7, 6 and 1
    assert asked.yielding([ahead, slow], [request(3)], 4.0) == [0]
    assert asked.yielding([ahead, slow], [request(3)], 0.5) == []  # nobody waits yet
    assert asked.yielding([ahead, slow], [request(3)], 6.0) == []  # nobody is far enough ahead


def test_a_copy_is_made_where_it_costs_less():
    asked = opened("fastswitch")
    held = request(0, pending=1, prompt=(0,) * 100)
    assert asked.saves(held)  # nobody knows yet
    asked.moved(100, 1.0)
    assert asked.saves(held)  # 2 x 0.99 s against 10.8 s
    for _ in range(40):
        asked.moved(100, 8.0)
    assert not asked.saves(held)


def test_groups_run_together_and_who_writes_most_goes_first():
    asked = opened("batchllm:prefix=4")
    a, b = (1, 1, 1, 1), (2, 2, 2, 2)
    waiting = [
        request(0, prompt=(*a, 5, 6, 7, 8), limit=4),
        request(1, prompt=(*b, 5), limit=40),
        request(2, prompt=(*a, 9), limit=4),
        request(3, prompt=(*b, 4), limit=40),
    ]
    assert asked.admit(waiting, 0.0) == [3, 1, 0, 2]
    asked.pick([waiting[0]._replace(pending=8)], 100, 0.0)
    assert asked.admit(waiting[1:], 0.0) == [2, 3, 1]  # the group that is under way goes on
    assert asked.admit([*waiting[1:], waiting[0]._replace(arrived=-1e6)], 0.0)[0] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "sarathi:stretch=0.5",
            "sarathi:step_ms=-1",
            "sarathi:floor_ms=-1",
            "sarathi:patience=-1",
            "splitfuse:tokens=-1",
            "fair:written=0",
            "priority:patience=0",
        ),
        *("skippredict:short=0", "andes-qoe:pace=0", "fastswitch:turn=0", "batchllm:prefix=0"),
    ],
)
def test_an_option_out_of_range_is_refused(wrong):
    option = wrong.partition(":")[2].partition("=")[0]
    with pytest.raises(ConfigError, match=f"scheduler option '{option}' is .*; give"):
        choose(SCHEDULERS, wrong)
