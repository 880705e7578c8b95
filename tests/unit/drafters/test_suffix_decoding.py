"""SuffixDecoding: what is learned, by whom it may be read, what is forgotten, and what outlives the engine."""

import gc
from dataclasses import replace

import pytest

from forerun.build import setup_for
from forerun.config import Config
from forerun.drafters.suffix_decoding import SuffixDecodingDrafter
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.stores.archive import PARTS
from forerun.stores.shelf import Shelf
from forerun.types import Context, Sampling

SETUP = setup_for(Config(), ToyModel(50, 0))


def drafter(setup=SETUP, **options):
    return SuffixDecodingDrafter(SuffixDecodingDrafter.Options(**options), setup)


def write(drafter, prompt, output, scope=""):
    """A whole request."""
    context = asked(drafter, prompt, scope)
    context.tokens.extend(output)
    drafter.stop(context)


def asked(drafter, tokens, scope=""):
    context = Context(0, list(tokens), len(tokens), Sampling(), CounterRng(0), scope=scope)
    return replace(context, state=drafter.start(context))


def test_a_text_continues_like_itself():
    one = drafter()
    draft = one.propose_one(asked(one, [1, 2, 3, 4, 5, 6, 7, 2, 3, 4]), 8)
    assert draft.tokens == (5, 6, 7)  # as many as were matched
    assert draft.confidence == (1.0, 1.0, 1.0)


def test_a_text_continues_like_an_earlier_one():
    one = drafter()
    write(one, [1, 2, 3], range(10, 30))
    context = asked(one, [9, 9, 1, 2, 3])
    assert one.propose_one(context, 8).tokens == (10, 11, 12)
    context.tokens.extend(range(10, 15))
    assert one.propose_one(context, 8).tokens == tuple(range(15, 23))


def test_what_went_on_in_two_ways_becomes_a_tree_of_its_frequencies():
    one = drafter(least=0.1)
    for after in ([7, 8], [7, 8], [5, 6], [7, 9]):
        write(one, [1, 2, 3], after)
    draft = one.propose_one(asked(one, [4, 4, 1, 2, 3]), 8)
    assert draft.tokens == (7, 8, 9)
    assert draft.parents == (-1, 0, 0)  # 5 is as likely, and was said longer ago
    assert draft.confidence == pytest.approx((3 / 4, 2 / 3, 1 / 3))


def test_one_tenant_never_reads_anothers_text():
    one = drafter()
    write(one, [1, 2, 3], [11, 12, 13], scope="a")
    assert len(one.propose_one(asked(one, [1, 2, 3], "b"), 8)) == 0
    assert len(one.propose_one(asked(one, [1, 2, 3]), 8)) == 0
    assert one.propose_one(asked(one, [1, 2, 3], "a"), 8).tokens == (11, 12, 13)


def test_a_request_that_wrote_nothing_teaches_nothing():
    one = drafter()
    write(one, [1, 2, 3, 4], [])
    assert one.archive.size == 0


def test_memory_is_bounded_and_what_is_of_no_use_goes_first():
    one = drafter(room=80)
    write(one, [], range(20), scope="old")
    write(one, [], range(20), scope="used")
    for turn in range(30):
        assert len(one.propose_one(asked(one, [3, 4, 5], "used"), 8)) == 3
        write(one, [], [turn] * 15, scope="new")
        assert one.archive.size <= 80
        assert one.archive.size == sum(len(t) for texts in one.archive.texts().values() for t in texts)
    assert set(one.archive.texts()) == {"used", "new"}
    assert one.propose_one(asked(one, [3, 4, 5], "used"), 8).tokens == (6, 7, 8)
    assert len(one.propose_one(asked(one, [3, 4, 5], "old"), 8)) == 0


def test_a_request_goes_on_while_what_it_reads_is_forgotten():
    one = drafter(room=40)
    write(one, [], range(10), scope="a")
    context = asked(one, [1, 2, 3], "a")
    assert one.propose_one(context, 8).tokens == (4, 5, 6)
    for turn in range(8):
        write(one, [], [20 + turn] * 10, scope="b")
    context.tokens.append(4)
    assert len(one.propose_one(context, 8)) == 0


def test_an_output_longer_than_a_part_keeps_its_end():
    one = drafter(room=40)
    write(one, [], range(30))
    assert [text.tolist() for text in one.archive.texts()[""]] == [list(range(20, 30))]


def test_too_little_room_is_refused():
    with pytest.raises(ConfigError, match=f"room=1; give at least {PARTS}"):
        drafter(room=1)


def stored(folder):
    return replace(SETUP, store=Shelf(folder, lambda: "mark"))


def test_what_is_learned_outlives_the_engine(tmp_path):
    one = drafter(stored(tmp_path))
    write(one, [1, 2, 3], [11, 12, 13], scope="a")
    del one
    gc.collect()
    again = drafter(stored(tmp_path))
    assert again.propose_one(asked(again, [1, 2, 3], "a"), 8).tokens == (11, 12, 13)
    assert len(again.propose_one(asked(again, [1, 2, 3], "b"), 8)) == 0


def test_a_store_larger_than_the_room_is_refused_and_stays(tmp_path):
    one = drafter(stored(tmp_path))
    write(one, [], range(40))
    del one
    gc.collect()
    before = [path.read_bytes() for path in tmp_path.glob("*.tokens")]
    with pytest.raises(ConfigError, match="holds 40 tokens and the drafter has room for 20; give it room=40, or"):
        drafter(stored(tmp_path), room=20)
    gc.collect()
    assert [path.read_bytes() for path in tmp_path.glob("*.tokens")] == before
    assert len(before) == 1
