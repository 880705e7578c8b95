"""Prefixes of finished requests: a hit changes no bit, another scope never hits, and evictions choose as they say."""

from collections import OrderedDict

import pytest

from forerun.caches import CACHES
from forerun.config import choose
from forerun.errors import ConfigError
from forerun.layers.evict import DECAY, Eviction, eviction_of
from forerun.layers.kv_blocks import Blocks, Prefix
from forerun.llm import LLM
from forerun.testing import Ask, Toy
from forerun.types import Sampling, salted

EVICTIONS = ("regions", "lru", "predicted")
PROMPT = "Once upon a time there was a little girl who had a red ball. One day she went to the park with her dog"


def spelled(evict, blocks=0):
    return f"paged:block_size=4,blocks={blocks},evict={evict}"


@pytest.fixture(scope="module")
def plain():
    return LLM("reference", drafter="none", planner="fixed")


@pytest.mark.parametrize("drafter", ["none", "draft-model:depth=3,cache=paged", "ngram"])
@pytest.mark.parametrize("evict", EVICTIONS)
def test_a_hit_gives_the_same_bits(plain, evict, drafter):
    """A real model's tokens and the logprobs of ten alternatives each, computed behind found keys and values."""
    llm = LLM(plain.model, plain.tokenizer, drafter=drafter, planner="fixed", cache=spelled(evict))
    sampling = Sampling(temperature=0.8, seed=3, max_tokens=24, logprobs=10)
    missed, hit = (llm.generate(PROMPT, sampling)[0] for _ in range(2))
    wanted = plain.generate(PROMPT, sampling)[0]
    assert missed.stats.cached == 0
    assert hit.stats.cached >= len(hit.prompt_tokens) - 4
    assert (missed.tokens, missed.logprobs) == (wanted.tokens, wanted.logprobs) == (hit.tokens, hit.logprobs)


def test_a_hit_costs_no_acceptance(plain):
    """A drafter with a second model reads the text that the target found: it guesses as well as it did without."""
    drafts = {"drafter": "draft-model:tree=chain,depth=3", "planner": "fixed"}
    llm = LLM(plain.model, plain.tokenizer, cache=spelled("lru"), **drafts)
    sampling = Sampling(temperature=0, max_tokens=40)
    missed, hit = (llm.generate(PROMPT, sampling)[0].stats for _ in range(2))
    assert hit.cached > 0
    assert (hit.accepted, hit.drafted) == (missed.accepted, missed.drafted)
    assert hit.accepted > 0


@pytest.mark.parametrize("evict", EVICTIONS)
def test_another_scope_never_hits(evict):
    engine = Toy(cache=spelled(evict)).build().engine
    found = {}
    for scope in ("a", "b", "a", "", "b"):
        engine.add((0, 1, 2) * 6, Sampling(temperature=0, max_tokens=4), scope)
        while engine.busy:
            for event in engine.step():
                if event.stats is not None:
                    found.setdefault(scope, []).append(event.stats.cached)
    assert found == {"a": [0, 16], "b": [0, 16], "": [0]}


@pytest.mark.parametrize("evict", EVICTIONS)
def test_a_written_text_is_found_too(evict):
    """The next turn of a conversation begins with what this one wrote."""
    rig = Toy(cache=spelled(evict)).build()
    first = rig.write([Ask((0, 1, 2, 0), Sampling(temperature=0, max_tokens=9))])[0]
    rig.write([Ask((0, 1, 2, 0, *first.tokens, 1), Sampling(temperature=0, max_tokens=2))])
    assert rig.said[1][-1].stats.cached == 12


def test_an_unknown_eviction_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'lru'"):
        choose(CACHES, "paged:evict=lur")


def filled(eviction, count=4):
    """Blocks that hold a prefix each, free, written in order."""
    blocks = Blocks(count, count, eviction)
    keys = []
    for i in range(count):
        block = blocks.take(-1)
        keys.append(Prefix.of(b"", (i,), ""))
        blocks.learn(block, keys[-1])
        blocks.release(block)
    return blocks, keys


def use(blocks, prefix):
    block = blocks.find(prefix)
    if block is not None:
        blocks.share(block)
        blocks.release(block)
    return block is not None


def test_the_least_recently_used_goes_first():
    blocks, keys = filled(eviction_of("lru"))
    assert use(blocks, keys[0])
    for gone in (1, 2):
        blocks.take(-1)
        assert blocks.find(keys[gone]) is None
    assert blocks.find(keys[0]) is not None
    assert blocks.find(keys[3]) is not None


def test_what_was_found_stays_longer_than_what_was_not():
    blocks, keys = filled(eviction_of("predicted"))
    assert use(blocks, keys[0])
    for _ in range(3):
        blocks.take(-1)
    assert [blocks.find(key) is not None for key in keys] == [True, False, False, False]
    blocks.take(-1)
    assert blocks.find(keys[0]) is None


def test_wrong_bits_are_not_believed():
    eviction = Eviction(0.5)
    cached = OrderedDict.fromkeys(range(3))
    for block in cached:
        eviction.enters(block)
    eviction.hit(0)
    eviction.leaves(0)
    eviction.enters(0)
    assert eviction.victim(cached, lambda block: bytes([block])) == 1
    for _ in range(200):  # whatever goes by its bit is asked for again
        eviction.missed(bytes([eviction.victim(cached, lambda block: bytes([block]))]))
        if eviction.wrong > 0.5:
            break
    assert eviction.wrong > 0.5
    assert eviction.victim(cached, lambda block: bytes([block])) == 0
    for _ in range(200):  # in time they get another chance
        eviction.wrong *= DECAY
    assert eviction.victim(cached, lambda block: bytes([block])) == 1


def test_blocks_in_use_are_never_taken():
    blocks, keys = filled(eviction_of("lru"))
    blocks.share(blocks.find(keys[0]))
    taken = {blocks.take(-1) for _ in range(3)}
    assert blocks.find(keys[0]) not in taken
    assert blocks.free() == 0


def test_a_hash_that_forgets_the_scope_is_seen(monkeypatch):
    right = Prefix.of
    monkeypatch.setattr(Prefix, "of", lambda parent, tokens, _: right(parent, tokens, ""))
    with pytest.raises(AssertionError, match="assert"):
        test_another_scope_never_hits("lru")


def left_of_a_neighbour(evict, share, others=("other",)):
    """Blocks of a tenant's text that it finds again after others have written many texts of their own."""
    spelled = f"paged:block_size=4,blocks=24,evict={evict},share={share}"
    engine = Toy(cache=spelled).build().engine

    def write(prompt, scope):
        number = engine.add(prompt, Sampling(temperature=0, max_tokens=2), scope)
        ends = [e for _ in range(99) if engine.busy for e in engine.step() if e.finish_reason is not None]
        engine.cache.check()
        assert [e.request for e in ends] == [number]
        return ends[0].stats.cached

    mine = (0, 1, 2) * 6
    write(mine, "mine")
    for i in range(40):
        text = tuple((i >> bit) % 2 for bit in range(6))
        write((*text, *text, *text), others[i % len(others)])
    return write(mine, "mine")


@pytest.mark.parametrize("evict", EVICTIONS)
def test_no_tenant_evicts_what_others_left(evict, monkeypatch):
    """S11: one that floods keeps half of the blocks, and its own oldest go; where nobody looks at that, all goes."""
    assert left_of_a_neighbour(evict, 0.5) == 16
    right = Blocks._may_take
    monkeypatch.setattr(Blocks, "_may_take", lambda blocks, block, _: right(blocks, block, "mine"))
    assert left_of_a_neighbour(evict, 1) < 16


@pytest.mark.parametrize("evict", EVICTIONS)
def test_salts_give_nobody_a_larger_share(evict):
    assert left_of_a_neighbour(evict, 0.5, [salted("other", str(i)) for i in range(40)]) == 16
    assert left_of_a_neighbour(evict, 0.5, [f"other {i}" for i in range(40)]) < 16


def test_a_scope_alone_keeps_everything_and_the_empty_one_has_no_share():
    for scope in ("a", ""):
        blocks = Blocks(8, 8, eviction_of("lru"), share=0.25)
        for i, owner in enumerate([scope] * 5 + (["b"] if not scope else [])):
            block = blocks.take(-1, owner)
            blocks.learn(block, Prefix.of(b"", (i,), owner))
            blocks.release(block)
        assert len(blocks.cached) == (5 if scope else 6)
