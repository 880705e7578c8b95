"""Laws of the toy model: its distribution is its table's, and it reads the table's key from the cache alone."""

import numpy as np
import pytest
import torch

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack, unpack
from forerun.errors import ConfigError
from forerun.models.load import load_model
from forerun.models.toy import ToyModel
from forerun.types import LayerPlan, Segment, Work

CPU = torch.device("cpu")


@pytest.fixture
def model():
    return ToyModel(vocab=3, seed=1)


@pytest.fixture
def cache(model):
    return ContiguousCache(ContiguousCache.Options(), model.info.layout, 3, 32)


def run(model, cache, *works):
    work = pack(works, cache, CPU)
    out = model.forward(work, cache)
    cache.advance(work.segments)
    return unpack(works, out)


def rows(model, cache, slot, tokens, **options):
    work = Work(slot, tuple(tokens), logits=tuple(range(len(tokens))), **options)
    return np.exp(run(model, cache, work)[0].logits.numpy())


def expected(model, contexts):
    return np.stack([model.probs(context) for context in contexts])


def prefixes(tokens):
    return [tokens[: i + 1] for i in range(len(tokens))]


def test_probabilities_are_proper_and_the_seed_decides():
    table = ToyModel(seed=5).table
    assert table.shape == (4, 3, 3)
    assert table.min() > 0.02
    np.testing.assert_allclose(table.sum(-1), 1, atol=1e-15)
    assert np.array_equal(table, ToyModel(seed=5).table)
    assert not np.array_equal(table, ToyModel(seed=6).table)
    assert np.abs(table[0] - table[1]).max() > 0.05  # the token before last matters


@pytest.mark.parametrize("chunks", [(6,), (1, 1, 1, 1, 1, 1), (2, 3, 1)])
def test_every_chunking_gives_the_table(model, cache, chunks):
    tokens, slot, found = [0, 2, 1, 1, 0, 2], cache.open(())[0], []
    for size in chunks:
        part = tokens[cache.length(slot) :][:size]
        found.append(rows(model, cache, slot, part))
        cache.keep(slot, part, range(size))
    np.testing.assert_allclose(np.concatenate(found), expected(model, prefixes(tokens)), atol=1e-15)


def test_tree_compaction_and_rollback(model, cache):
    slot = cache.open(())[0]
    rows(model, cache, slot, [0, 1, 2])
    cache.keep(slot, [0, 1, 2], range(3))
    tokens, parents = (0, 1, 1, 2, 0), (-1, -1, 0, 0, 1)
    contexts = [[2, 0], [2, 1], [0, 1], [0, 2], [1, 0]]
    np.testing.assert_allclose(rows(model, cache, slot, tokens, parents=parents), expected(model, contexts), atol=1e-15)
    cache.keep(slot, [1, 0], (1, 4))
    mark = cache.checkpoint(slot)
    np.testing.assert_allclose(rows(model, cache, slot, [2]), expected(model, [[0, 2]]), atol=1e-15)
    cache.keep(slot, [], ())
    cache.rollback(slot, mark)
    np.testing.assert_allclose(rows(model, cache, slot, [1]), expected(model, [[0, 1]]), atol=1e-15)


@pytest.mark.parametrize("fault", ["stale token", "wrong position", "lost token"])
def test_a_faulty_cache_changes_the_distribution(model, cache, fault):
    slot = cache.open(())[0]
    rows(model, cache, slot, [0, 1, 2])
    cache.keep(slot, [0, 1, 2], range(3))
    keys, values = cache.read(0, Segment(slot, 0, 0, 3, 0, None))
    if fault == "stale token":
        keys[:, 2] = 0
    elif fault == "wrong position":
        values[:, 2] = 9
    else:
        cache.rollback(slot, 2)
    assert np.abs(rows(model, cache, slot, [1]) - expected(model, [[2, 1]])).max() > 1e-3


def test_hidden_states_are_one_hot_and_neighbours_do_not_mix(model, cache):
    a, b = cache.open(())[0], cache.open(())[0]
    outs = run(model, cache, Work(a, (0, 2), logits=(1,), hidden=(-1,)), Work(b, (1,), logits=(0,)))
    assert outs[0].hidden[-1].tolist() == [[0, 0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 1]]
    assert model.info.hidden_size == 7
    np.testing.assert_allclose(np.exp(outs[1].logits.numpy()), expected(model, [[1]]), atol=1e-15)


def test_without_its_layer_it_sees_one_token(model, cache):
    slot = cache.open(())[0]
    found = rows(model, cache, slot, [0, 2], plan=LayerPlan(()))
    np.testing.assert_allclose(found, expected(model, [[0], [2]]), atol=1e-15)


def test_names():
    assert load_model("toy:4:5").info.vocab_size == 5
    assert np.array_equal(load_model("toy:4").table, ToyModel(seed=4).table)
    assert load_model("toy:4:a+b+ab").words == ("a", "b", "ab")
    assert load_model("toy:4:a+b+ab").info.name == "toy:4:a+b+ab"
    for name in ("toy:", "toy:x", "toy:1:2:3", "toy:1:1", "toy:1:100000", "toy:1:a+", "toy:1:a+a", "toy:a+b"):
        with pytest.raises(ConfigError, match="toy"):
            load_model(name)
