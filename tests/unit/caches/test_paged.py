"""What only blocks do: sharing, laying side by side, eviction, running out, and books that notice."""

import pytest
import torch

from forerun.caches.paged import PagedCache
from forerun.errors import CacheError, ConfigError
from forerun.layers.kv_blocks import Prefix
from forerun.types import Segment

PROMPT = list(range(10))


def make(desk, blocks=0, slots=3, length=24, **options):
    return desk(PagedCache, PagedCache.Options(4, blocks, poison=True, **options), slots, length)


def is_view(desk, slot):
    segment = Segment(slot, 0, 0, desk.cache.length(slot), 0, None)
    mine, pool = desk.cache.read(0, segment)[0], desk.cache.rows.keys[0]
    return mine.untyped_storage().data_ptr() == pool.untyped_storage().data_ptr()


def test_slots_that_share_nothing_are_read_without_a_copy(desk):
    cache = make(desk)
    slots = [cache.open([]) for _ in range(3)]
    for token in range(cache.length):  # they grow side by side
        assert cache.draft({slot: ([token], None) for slot in slots})
        for slot in slots:
            cache.keep(slot, [0])
    assert all(is_view(cache, slot) for slot in slots)
    cache.compare()


def test_a_conversation_that_goes_on_is_read_without_a_copy(desk):
    cache = make(desk)
    for length in (6, 13, 22):
        slot = cache.fill(list(range(length)))
        assert is_view(cache, slot)
        cache.close(slot)


def test_slots_that_share_a_prefix_store_it_once(desk):
    cache = make(desk)
    first = cache.fill(PROMPT)
    before = cache.cache.free()
    second = cache.fill([*PROMPT[:8], 77])
    assert cache.cache.free() == before - 4
    assert not is_view(cache, second)
    cache.close(first)
    cache.fill(list(range(50, 74)))
    cache.compare()


def test_without_prefix_nothing_is_found(desk):
    cache = make(desk, prefix=False)
    cache.close(cache.fill(PROMPT))
    slot = cache.open(PROMPT)
    assert cache.cache.length(slot) == 0
    cache.compare()


def test_a_pool_that_runs_out_refuses_whole_and_goes_on_after_a_close(desk):
    cache = make(desk, blocks=5)
    slots = [cache.fill(PROMPT[:8]), cache.fill([3] * 8)]
    assert not cache.draft({slots[0]: ([1] * 5, None)})
    cache.compare()
    assert cache.cache.free() == 4
    twin = cache.fork(slots[0])
    cache.rollback(twin, 6)  # a shared block must be copied before it changes
    assert cache.draft({slots[1]: ([1], None)})
    assert not cache.draft({twin: ([1], None)})
    cache.compare()
    cache.close(slots[1])
    assert cache.draft({twin: ([1, 2, 3, 4, 5, 6], None)})
    cache.keep(twin, range(6))
    cache.compare()
    cache.close_all()
    assert cache.cache.free() == cache.empty


def test_a_fork_amid_a_draft_needs_a_block(desk):
    cache = make(desk, blocks=2)
    slot = cache.fill(PROMPT[:6])
    assert cache.draft({slot: ([1], None)})
    with pytest.raises(CacheError, match="no block is free for a fork"):
        cache.fork(slot)
    cache.compare()
    cache.keep(slot, [0])
    cache.fork(slot)
    cache.compare()


def found(cache, tokens):
    slot = cache.open(tokens)
    length = cache.cache.length(slot)
    cache.close(slot)
    return length


def test_the_oldest_prefix_is_evicted(desk):
    cache = make(desk, blocks=12, slots=1)
    old, new, newest = ([token] * 9 for token in (1, 2, 3))
    for prompt in (old, new, newest):
        cache.close(cache.fill(prompt))
        cache.compare()
    assert [found(cache, prompt) for prompt in (old, new, newest)] == [0, 8, 8]


def test_free_memory_is_taken_before_a_prefix_and_the_end_of_a_prefix_before_its_start(desk):
    cache = make(desk, blocks=8, slots=2, length=32)
    slot, other = cache.fill(PROMPT * 2), cache.fill([7])  # the other one lies right behind
    first, second, third, fourth, fifth = cache.cache._open[slot].blocks
    cache.close(slot)
    books = cache.cache._blocks
    assert list(books.cached) == [fifth, fourth, third, second, first]
    books.share(first)  # no region is idle
    assert [books.take(7) for _ in range(6)][-4:] == [fifth, fourth, third, second]
    assert other == 1


def test_a_prefix_in_use_is_never_evicted(desk):
    cache = make(desk, blocks=6)
    keeper = cache.fill(PROMPT[:8])
    for filler in range(20, 30):
        cache.close(cache.fill([filler] * 16))
        cache.compare()
    assert found(cache, PROMPT) == 8
    cache.close(keeper)


def test_a_key_speaks_of_parent_tokens_and_scope():
    keys = {
        Prefix.of(parent, tokens, scope).key
        for parent in (b"", b"p" * 32)
        for tokens in ((1, 2), (2, 1), (258, 0), (2**32 - 1, 0))
        for scope in ("", "a", "b", "\ud800")
    }
    assert len(keys) == 32


@pytest.mark.parametrize("options", [{"block_size": 0}, {"blocks": -1}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match="to"):
        PagedCache.Options(**options)


def spoil_owners(cache):
    cache._blocks.owners[cache._open[0].blocks[0]] += 1


def spoil_free(cache):
    cache._blocks.clean[cache._open[0].blocks[0]] = None


def spoil_lists(cache):
    block, _ = cache._blocks.clean.popitem()
    cache._blocks.cached[block] = None


def spoil_index(cache):
    cache._blocks.index.popitem()


def spoil_hash(cache):
    block = cache._open[0].blocks[0]
    prefix = cache._blocks.prefix[block]
    cache._blocks.prefix[block] = prefix._replace(tokens=(9, 9, 9, 9))


def spoil_part(cache):
    prefix = Prefix.of(cache._open[0].keys[-1], PROMPT[8:], "")
    cache._blocks.learn(cache._open[0].blocks[-1], prefix)


def spoil_content(cache):
    cache._open[0].tokens[0] = 99


def spoil_keys(cache):
    cache._open[0].keys.pop()


def spoil_length(cache):
    cache._open[0].unjudged = 3


def spoil_slots(cache):
    cache._idle.pop()


def spoil_sharing(cache):
    cache.fork(0)
    cache._open[0].unjudged = 1


SPOILERS = [value for name, value in list(globals().items()) if name.startswith("spoil_")]


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda f: f.__name__)
def test_the_check_sees_it(desk, spoil):
    cache = make(desk)
    cache.fill(PROMPT)
    cache.cache.check()
    spoil(cache.cache)
    with pytest.raises(CacheError, match=r"[;,]"):
        cache.cache.check()


def test_stale_memory_is_poisoned(desk):
    cache = make(desk)
    slot = cache.fill(PROMPT)
    assert cache.draft({slot: ([1, 2, 3, 4], None)})
    cache.keep(slot, [])
    keys = cache.cache.rows.keys[0][:, : cache.cache.rows.scratch]
    assert int((~torch.isnan(keys[0, :, 0])).sum()) == len(PROMPT)
