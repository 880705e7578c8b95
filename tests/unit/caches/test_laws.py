"""What every cache must obey; a cache that is added to the table is tested without a line here."""

from functools import partial

import pytest
import torch

from forerun.caches import CACHES
from forerun.caches.contract import Cache
from forerun.errors import CacheError

PROMPT = list(range(10))
TREE = ([11, 12, 13, 14, 15, 16], [-1, -1, 0, 1, 3, 3])
PATHS = [[], [0], [1], [0, 2], [1, 3], [1, 3, 4], [1, 3, 5]]

pytestmark = pytest.mark.parametrize("name", CACHES)


@pytest.fixture(params=[None, torch.bfloat16, torch.int8], ids=str)
def cache(name, desk, request):
    return desk(CACHES[name], CACHES[name].toy(), kept=request.param)


def snapshots(desk, slot):
    return [tensor for pair in desk.cache.snapshot(slot) for tensor in pair]


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_full_rejection_leaves_no_trace(cache):
    slot, plain = cache.fill(PROMPT), cache.fill(PROMPT)
    room = cache.cache.free()
    assert cache.draft({slot: TREE})
    cache.keep(slot, [])
    assert equal(snapshots(cache, slot), snapshots(cache, plain))
    assert cache.cache.free() == room
    for s in (slot, plain):  # and what comes after is the same as well
        assert cache.draft({s: ([3, 4], None)})
        cache.keep(s, [0, 1])
    cache.compare()
    assert equal(snapshots(cache, slot), snapshots(cache, plain))


@pytest.mark.parametrize("start", range(3, 9))
@pytest.mark.parametrize("path", PATHS, ids=str)
def test_keeping_a_path_is_writing_it(cache, path, start):
    slot, plain = cache.fill(PROMPT[:start]), cache.fill(PROMPT[:start])
    assert cache.draft({slot: TREE})
    cache.keep(slot, path)
    tokens = [TREE[0][node] for node in path]
    if tokens:
        assert cache.draft({plain: (tokens, None)})
        cache.keep(plain, range(len(tokens)))
    cache.compare()
    assert equal(snapshots(cache, slot), snapshots(cache, plain))


def test_a_draft_may_grow_level_by_level(cache):
    slot = cache.fill(PROMPT)
    assert cache.draft({slot: ([1, 2], [-1, -1])})
    assert cache.draft({slot: ([3, 4, 5], [0, 1, 1])})
    assert cache.draft({slot: ([6], [4])})
    cache.compare()
    cache.keep(slot, [1, 4, 5])
    cache.compare()


@pytest.mark.parametrize("beyond", [0, 1, 5])
@pytest.mark.parametrize("start", [1, 3, 4, 8])
def test_what_is_read_ahead_is_committed_and_has_room_for_nodes(desk, name, start, beyond):
    """The same books as a pass over the tokens, their `keep`, and a pass over the nodes make."""
    ahead, by_steps = (desk(CACHES[name], CACHES[name].toy()) for _ in range(2))
    found = []
    for one, read in ((ahead, ahead.cache.read_ahead), (by_steps, partial(Cache.read_ahead, by_steps.cache))):
        slot = one.fill(PROMPT[:start])
        assert one.cache.reserve(slot, 3 + beyond)
        runs = read(slot, PROMPT[start : start + 2], beyond)
        cache = one.cache
        cache.check()
        found.append((runs, cache.length(slot), cache.unjudged(slot), cache.free()))
        cache.keep(slot, [7] * min(beyond, 2), range(0, 2 * min(beyond, 2), 2) if beyond > 2 else range(min(beyond, 2)))
        found[-1] += cache.length(slot), cache.unjudged(slot)
    assert found[0] == found[1]
    assert sum(count for _, count in found[0][0]) == start + 2 + beyond
    assert found[0][1:3] == (start + 2, beyond)


def test_what_is_read_ahead_needs_room(cache):
    slot = cache.fill(PROMPT)
    with pytest.raises(CacheError):
        cache.cache.read_ahead(slot, [5, 6], 20)


def test_one_pass_serves_many_slots(cache):
    slots = [cache.fill(PROMPT[:length]) for length in (3, 8, 5)]
    assert cache.draft(dict.fromkeys(slots, TREE))
    for slot, path in zip(slots, PATHS[3:], strict=False):
        cache.keep(slot, path)
    cache.compare()


@pytest.mark.parametrize("length", [0, 1, 4, 7, 8])
@pytest.mark.parametrize("drafting", [False, True])
def test_a_fork_and_its_source_do_not_see_each_other(cache, length, drafting):
    slot = cache.fill(PROMPT[:length])
    if drafting:
        assert cache.draft({slot: TREE})
    twin = cache.fork(slot)
    cache.compare()
    if drafting:
        cache.keep(slot, [1, 3])
    for s, token in ((slot, 5), (twin, 6), (twin, 7), (slot, 8)):
        assert cache.draft({s: ([token] * 3, None)})
        cache.keep(s, [0, 1])
        cache.compare()
    cache.close(slot)
    cache.compare()


@pytest.mark.parametrize("mark", [0, 2, 4, 7, 8, 10])
def test_rollback_forgets(cache, mark):
    slot = cache.fill(PROMPT)
    twin, plain = cache.fork(slot), cache.fill(PROMPT[:mark])
    assert cache.draft({slot: TREE})
    cache.rollback(slot, mark)
    assert equal(snapshots(cache, slot), snapshots(cache, plain))
    assert cache.draft({slot: ([9, 8, 7, 6, 5], None)})
    cache.compare()
    cache.keep(slot, [0, 1, 2])
    cache.compare()  # the twin still holds what was rolled back
    assert cache.held[twin].tokens == PROMPT


def test_a_pass_that_failed_leaves_no_trace(cache):
    slot = cache.fill(PROMPT)
    assert cache.draft({slot: TREE}, finish=False)
    cache.compare()
    assert cache.draft({slot: ([1, 2], None)})
    cache.keep(slot, [0])
    cache.compare()


def test_a_prefix_is_found_within_its_scope_only(cache, name):
    slot = cache.fill(PROMPT, "red")
    first = snapshots(cache, slot)
    cache.close(slot)
    for scope, shared in (("blue", 0), ("red", 8), ("blue", 8), ("", 0), ("red" + "\0", 0)):
        slot = cache.open(PROMPT, scope)
        found = len(cache.held[slot].tokens)
        assert found == (shared if CACHES[name].facts.shares else 0)
        cache.compare()
        rest = PROMPT[found:]
        assert cache.draft({slot: (rest, None)})
        cache.keep(slot, range(len(rest)))
        assert (scope == "red") == equal(first, snapshots(cache, slot))
        cache.close(slot)


def test_at_least_the_last_token_is_computed(cache):
    cache.close(cache.fill(PROMPT[:8]))
    for length in range(9):
        slot = cache.open(PROMPT[:length])
        assert len(cache.held[slot].tokens) < max(1, length)
        cache.close(slot)


def test_closing_returns_everything(cache):
    slots = [cache.fill(PROMPT), cache.open(PROMPT)]
    slots.append(cache.fork(slots[0]))
    assert cache.draft({slots[2]: TREE})
    assert cache.cache.reserve(slots[1], 9)
    cache.close_all()
    cache.compare()
    assert cache.cache.free() == cache.empty


def test_a_full_slot_refuses_and_nothing_changes(cache):
    slot = cache.fill(PROMPT)
    other = cache.fill(PROMPT[3:])
    assert cache.draft({slot: ([1] * (cache.length - 12), None)})
    room = cache.cache.free()
    assert not cache.cache.reserve(slot, 3)
    assert cache.cache.free() == room
    cache.compare()
    assert cache.draft({slot: ([2, 2], None), other: TREE})
    cache.keep(slot, range(cache.length - 10))
    assert not cache.cache.reserve(slot, 1)
    cache.compare()


def test_slots_run_out_and_come_back(cache):
    slots = [cache.fill([slot] * 5) for slot in range(cache.slots)]
    for refused in (lambda: cache.cache.open([1, 2]), lambda: cache.cache.fork(slots[0])):
        with pytest.raises(CacheError, match="slots are taken; wait"):
            refused()
        cache.compare()
    cache.close(slots[1])
    cache.fill(PROMPT)
    cache.compare()


def test_every_slot_can_be_full_at_once(cache):
    slots = [cache.fill([slot] * cache.length) for slot in range(cache.slots)]
    cache.compare()
    assert cache.cache.free() == 0
    cache.rollback(slots[1], 5)
    assert cache.draft({slots[1]: ([1] * (cache.length - 5), None)})
    cache.compare()


def test_misuse_is_refused_and_changes_nothing(cache):
    slot = cache.fill(PROMPT)
    assert cache.draft({slot: TREE})
    for misuse in (
        lambda: cache.cache.keep(slot, [11, 14], [0, 3, 4]),
        lambda: cache.cache.keep(slot, [11, 14], [3, 0]),
        lambda: cache.cache.keep(slot, [11], [6]),
        lambda: cache.cache.keep(slot, [11], [-1]),
        lambda: cache.cache.rollback(slot, 11),
        lambda: cache.cache.rollback(slot, -1),
    ):
        with pytest.raises(CacheError, match=";"):
            misuse()
        cache.compare()
    cache.close(slot)
    with pytest.raises(CacheError, match="closed already; close a slot once"):
        cache.cache.close(slot)
    cache.compare()


def test_writing_without_room_is_refused(cache, monkeypatch):
    slot = cache.fill(PROMPT)
    monkeypatch.setattr(cache.cache, "reserve", lambda *_: True)
    with pytest.raises(CacheError, match="reserve before writing"):
        cache.draft({slot: ([1] * cache.length, None)})
    cache.compare()
