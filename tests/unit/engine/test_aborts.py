"""R12: who is aborted gives all back at once, wherever he stands, and neighbours never notice."""

import random
from dataclasses import replace

import pytest

from forerun.config import Config
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.types import Sampling

ABORTS = 2000
TOY = Toy(
    model=ToyModel(5, 3),
    verifier="match",
    cache="paged:block_size=4,blocks=16,prefix=false,poison=true",
    config=Config(max_requests=4, max_step_tokens=12),
)
ASKS = [
    Ask(tuple(i * j % 5 for j in range(2 + 3 * (i % 5))), Sampling(temperature=i % 2, max_tokens=2 + i % 11, seed=i))
    for i in range(40)
]
MEMBERS = [
    {"drafter": "ngram:min_match=1"},
    {"drafter": "draft-model:model=toy:9:5,depth=3"},
    {"drafter": "suffix-decoding", "scheduler": "fastswitch:turn=3"},
    {"drafter": "none"},
]


@pytest.mark.parametrize("members", MEMBERS, ids=lambda members: members["drafter"].partition(":")[0])
def test_aborts_at_any_moment(members):
    """In the queue, amid a prompt, between two steps of a text, while it is out of its slot, and twice."""
    toy = replace(TOY, **members)
    whole = [toy.build().write([ask])[0].tokens for ask in ASKS]
    rig, rng = toy.build(), random.Random(0)  # noqa: S311 - a plan, not a secret
    rig.scopes = None  # all share one
    asked, aborted, stood = {}, set(), set()
    while len(aborted) < ABORTS // len(MEMBERS):
        for _ in range(rng.randrange(4)):
            which = rng.randrange(len(ASKS))
            asked[rig.add(ASKS[which])] = which
        for _ in range(rng.randrange(3)):
            rig.step()
        for number in rng.sample(sorted(rig.engine.requests), min(len(rig.engine.requests), rng.randrange(4))):
            request, room = rig.engine.requests[number], rig.engine.cache.free()
            slot = request.slot
            stood.add(("waits" if request.context is None else "paused") if slot is None else bool(request.written))
            rig.engine.abort(number)
            rig.engine.abort(number)
            aborted.add(number)
            assert number not in rig.engine.requests
            assert rig.engine.cache.free() > room or slot is None or not request.done
        rig.engine.cache.check()
    rig.finish()
    reasons = {number: rig.text(number).finish_reason for number in asked}
    assert {number for number, reason in reasons.items() if reason == "abort"} == aborted
    for number, which in asked.items():
        tokens = rig.text(number).tokens
        assert tokens == whole[which] if number not in aborted else tokens == whole[which][: len(tokens)]
    assert stood >= {"waits", False, True} | ({"paused"} if "scheduler" in members else set())
    assert [cache.free() for cache in rig.caches] == rig.rooms
    assert rig.engine.stats.draft_failures == 0


def test_sixty_four_share_what_one_needs():
    """R11: 1.2 times the room of the longest request; all end, each step somebody goes on, and texts are the same."""
    asks = [replace(ASKS[i % 40], sampling=replace(ASKS[i % 40].sampling, seed=i, max_tokens=24)) for i in range(64)]
    longest = max(len(ask.prompt) for ask in asks) + 24
    blocks = -(-6 * longest // 5 // 4)
    alone = replace(TOY, drafter="ngram:min_match=1", cache="paged:block_size=4")
    tight = replace(alone, cache=f"paged:block_size=4,blocks={blocks}").resized(max_requests=16, max_step_tokens=64)
    whole = [alone.build().write([ask])[0].tokens for ask in asks]
    rig = tight.build()
    numbers = [rig.add(ask) for ask in asks]
    while rig.engine.busy:
        steps = rig.engine.stats.rows
        rig.step()
        assert rig.engine.stats.rows > steps or not rig.engine.busy
    assert [rig.text(number).tokens for number in numbers] == whole
    assert rig.engine.stats.preemptions
    assert rig.engine.cache.free() == rig.rooms[0]


def test_a_pool_smaller_than_one_request_ends_it_with_what_fits():
    """R11: no deadlock: who runs alone and finds no room ends by length, and so does the next."""
    toy = replace(TOY, drafter="ngram:min_match=1", cache="paged:block_size=4,blocks=4")
    rig, ask = toy.build(), Ask((0, 1), Sampling(temperature=0, max_tokens=40))
    whole = replace(toy, cache="paged:block_size=4").build().write([ask])
    texts = rig.write([ask] * 3)
    assert {text.finish_reason for text in texts} == {"length"}
    assert all(0 < len(text.tokens) < 40 for text in texts)
    assert all(text.tokens == whole[0].tokens[: len(text.tokens)] for text in texts)
    assert rig.engine.cache.free() == rig.rooms[0]
