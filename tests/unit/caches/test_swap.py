"""What a slot holds comes back to the bit, from whichever cache, precision and place."""

import pytest
import torch

from forerun.caches import CACHES
from forerun.engine.swap import copy_in, copy_out

TOKENS = [1, 2, 0, 1, 1, 2, 2, 0, 1, 0]


@pytest.mark.parametrize("kept", [None, torch.int8], ids=str)
@pytest.mark.parametrize("length", [1, 7, 8])
@pytest.mark.parametrize("name", CACHES)
def test_a_copy_is_what_was_there(name, length, kept, desk):
    d = desk(CACHES[name], CACHES[name].toy(), kept=kept)
    mine = d.fill(TOKENS[:length], "a")
    before = d.cache.snapshot(mine)
    copy = copy_out(d.cache, mine, TOKENS[:length])
    d.close(mine)
    others = [d.fill(TOKENS[::-1], "b"), d.fill(TOKENS, "c")]  # so that it comes to lie elsewhere
    slot, held = d.cache.open(TOKENS[:length], "a")
    assert held <= length
    assert copy_in(d.cache, slot, copy)
    assert d.cache.length(slot) == length
    for pair, other in zip(before, d.cache.snapshot(slot), strict=True):
        assert all(torch.equal(was, now) for was, now in zip(pair, other, strict=True))
    for other in others:
        d.close(other)
    d.cache.close(slot)
    d.cache.check()
    assert d.cache.free() == d.empty


def test_a_copy_that_finds_no_room_changes_nothing(desk):
    d = desk(CACHES["paged"], CACHES["paged"].Options(block_size=4, blocks=4, prefix=False))
    mine = d.fill(TOKENS)
    copy = copy_out(d.cache, mine, TOKENS)
    d.close(mine)
    d.fill(TOKENS[:8])
    slot, _ = d.cache.open(TOKENS)
    assert not copy_in(d.cache, slot, copy)
    assert d.cache.length(slot) == 0
    d.cache.check()
