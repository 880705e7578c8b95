"""Passes of fixed shape say what ragged ones say; in the invariant mode a row has the same bits in any company."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
import transformers

from forerun import host
from forerun.caches.contiguous import ContiguousCache
from forerun.caches.paged import PagedCache
from forerun.engine import runner as runners
from forerun.engine.grid import Shaping, above, doubled
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError
from forerun.layers.whole import WholeLinear
from forerun.models.load import load_model
from forerun.testing import Ask, BushyDrafter, Toy
from forerun.trees.chain import ChainTree
from forerun.types import LayerPlan, Sampling, Work

VOCAB, LENGTH = 96, 320
TREE = ((5, 9, 11, 7, 30, 31, 2), (-1, -1, 0, 0, 1, 3, 4))
SHAPES = {
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 16, "sliding_window": 5, "num_key_value_heads": 1},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "num_key_value_heads": 4},
}
PADDED, INVARIANT = Shaping(LENGTH), Shaping(LENGTH, invariant=True)
PROTOTYPE = "ignore:Synchronization debug mode is a prototype"  # which torch says when it is first asked for
SCRIPT = "ignore:`torch.jit.script_method` is deprecated"  # which torch says of itself when it first compiles
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def save(folder, family, **changes):
    small = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
    small |= {"num_attention_heads": 4, "max_position_embeddings": 512, "torch_dtype": "float32"}
    config = transformers.AutoConfig.for_model(family, **small | SHAPES[family] | changes)
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    for weight in theirs.parameters():
        weight.data = weight.data + torch.randn_like(weight) * 0.2
    theirs.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {family: save(tmp_path_factory.mktemp(family), family) for family in SHAPES}


@pytest.fixture(scope="module", params=DEVICES)
def models(request, folders):
    return {name: load_model(folder, "float32", request.param, compiled=False) for name, folder in folders.items()}


def some(length, seed=0):
    return tuple(torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def opened(model, shaping, cache=ContiguousCache, **options):
    return ModelRunner(model, cache(cache.Options(**options), model.info.layout, 6, LENGTH), shaping)


def feed(runner, tokens, cuts=()):
    """Commit tokens in chunks; returns the slot and the last row's logits."""
    slot, _ = runner.cache.open(())
    for start, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        part = tokens[start:end]
        assert runner.cache.reserve(slot, len(part))
        last = runner.run([Work(slot, part, logits=(len(part) - 1,))])[0].logits.clone()
        runner.cache.keep(slot, part, range(len(part)))
    return slot, last


def crowd(runner, past, **asked):
    """A tree beside a chunk and a single row; the tree's output."""
    first, other = feed(runner, some(40, 9))[0], feed(runner, some(7, 4))[0]
    slot, _ = feed(runner, past)
    tokens, parents = TREE
    works = [
        Work(first, some(11, 5), logits=(10,), **asked),
        Work(slot, tokens, parents, logits=tuple(range(len(tokens))), **asked),
        Work(other, (3,), logits=(0,), **asked),
    ]
    for work in works:
        assert runner.cache.reserve(work.slot, len(work.tokens))
    return runner.run(works)[1]


def test_sizes_go_up_by_doubling_and_then_by_64():
    assert [above(n) for n in (0, 1, 2, 3, 33, 64, 65, 128, 129, 500)] == [0, 1, 2, 4, 64, 64, 128, 128, 192, 512]
    assert [doubled(n) for n in (0, 1, 2, 3, 255, 257)] == [0, 1, 2, 4, 256, 512]


@pytest.mark.parametrize("asked", [{}, {"hidden": (0, -1)}, {"plan": LayerPlan((0, 2))}, {"hidden": (2,)}])
@pytest.mark.parametrize("family", SHAPES)
def test_a_padded_pass_says_what_a_ragged_one_says(models, family, asked):
    ragged, padded = (crowd(opened(models[family], shaping), some(23), **asked) for shaping in (None, PADDED))
    torch.testing.assert_close(padded.logits, ragged.logits, atol=1e-4, rtol=1e-4)
    assert padded.best == ragged.best
    assert set(padded.hidden) == set(asked.get("hidden", ()))
    for layer, rows in padded.hidden.items():
        torch.testing.assert_close(rows, ragged.hidden[layer], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kept", ["bf16", "int8"])
@pytest.mark.parametrize("cache", [ContiguousCache, PagedCache])
def test_keys_and_values_may_be_kept_in_fewer_bits(folders, kept, cache):
    model = load_model(folders["llama"], "float32", "cpu", 0, kept, compiled=False)
    ragged, padded = (crowd(opened(model, shaping, cache), some(23)).logits for shaping in (None, PADDED))
    torch.testing.assert_close(padded, ragged, atol=2e-2, rtol=2e-2)  # what rounds differently, once in a while
    assert not torch.equal(padded, crowd(opened(load_model(folders["llama"], compiled=False), PADDED), some(23)).logits)


@pytest.mark.parametrize("shaping", [PADDED, INVARIANT, Shaping(LENGTH, kernel="flex")], ids=str)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings(SCRIPT)
def test_a_context_of_more_than_one_bucket(models, shaping):
    tokens = some(300)
    ragged, padded = (feed(opened(models["qwen2"], how), tokens, (250,))[1] for how in (None, shaping))
    torch.testing.assert_close(padded, ragged, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cache", [ContiguousCache, PagedCache])
@pytest.mark.parametrize("shaping", [PADDED, INVARIANT], ids=["padded", "invariant"])
def test_what_nobody_may_read_does_not_reach_a_result(models, shaping, cache):
    clean = crowd(opened(models["llama"], shaping, cache), some(23)).logits.clone()
    runner = opened(models["llama"], shaping, cache)
    for strip in (*runner.cache.rows.keys, *runner.cache.rows.values):
        strip.fill_(torch.nan)
    runner.cache.open(())  # a slot that stays empty: its rows stay poisoned
    assert torch.equal(crowd(runner, some(23)).logits, clean)


@pytest.mark.parametrize("family", SHAPES)
def test_an_invariant_row_has_the_bits_that_it_has_alone(models, family):
    past, (tokens, parents) = some(23), TREE
    together = crowd(opened(models[family], INVARIANT), past).logits.clone()
    for leaf in set(range(len(tokens))) - set(parents):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        runner = opened(models[family], INVARIANT)
        slot, _ = feed(runner, past, (3, 20))
        for node in path:
            alone = runner.run([Work(slot, (tokens[node],), logits=(0,))])[0].logits[0]
            runner.cache.keep(slot, (tokens[node],), (0,))
            assert torch.equal(alone, together[node])


def rig(folders, models, passes, drafter="none"):
    name = drafter.format(folder=folders["gemma2"]) if isinstance(drafter, str) else drafter
    device = models["llama"].info.layout.device.type
    sizes = {"max_requests": 4, "max_step_tokens": 24, "context_length": 128, "draft_timeout": 300.0}
    return Toy(drafter=name, model=models["llama"]).resized(passes=passes, device=device, **sizes).build()


ASKS = [Ask(some(5 + 9 * seed, seed), Sampling(temperature=0, max_tokens=20, seed=seed)) for seed in range(5)]


@pytest.mark.parametrize("drafter", ["draft-model:model={folder},depth=3", "ngram:min_match=1", BushyDrafter])
@pytest.mark.parametrize("passes", ["padded", "invariant"])
def test_greedy_speculative_text_is_plain_text(folders, models, passes, drafter):
    plain = [t.tokens for t in rig(folders, models, passes).write(ASKS)]
    drafted = rig(folders, models, passes, drafter)
    assert [t.tokens for t in drafted.write(ASKS)] == plain
    assert drafted.engine.stats.draft_failures == 0
    if passes == "invariant":
        assert [rig(folders, models, passes).write([ask])[0].tokens for ask in ASKS] == plain


def test_a_shape_is_made_once_and_the_oldest_goes(models, monkeypatch):
    monkeypatch.setattr(runners, "GRAPHS", 2)
    runner = opened(models["llama"], PADDED)
    slot, _ = feed(runner, some(9))
    kept = runner.padded.kept
    first = list(kept.values())
    for step in range(3):
        assert runner.run([Work(slot, (step,), logits=(0,))])[0].best
        runner.cache.keep(slot, (step,), (0,))
    assert len(kept) == 2
    assert list(kept.values())[:1] == first
    feed(runner, some(30))
    assert len(kept) == 2
    assert first[0] not in kept.values()


def test_a_round_waits_for_the_draft_and_for_the_target(folders, models, monkeypatch):
    waited, real = [], host.fetch

    def counted(tensor):
        waited.append(tensor)
        return real(tensor)

    monkeypatch.setattr(host, "fetch", counted)
    drafted = rig(folders, models, "padded", "draft-model:model={folder},depth=3")
    drafted.write(ASKS)
    assert 10 < len(waited) <= 2 * drafted.engine.stats.steps
    assert drafted.engine.stats.draft_failures == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chain_that_grows_on_the_device_is_the_one_that_grows_on_the_host(folders, models, monkeypatch, temperature):
    asks = [replace(ask, sampling=replace(ask.sampling, temperature=temperature)) for ask in ASKS]
    drafter = "draft-model:model={folder},depth=4"
    blind = rig(folders, models, "padded", drafter)
    texts = blind.write(asks)
    monkeypatch.setattr(ChainTree, "blind", False)
    seeing = rig(folders, models, "padded", drafter)
    assert [t.emissions for t in seeing.write(asks)] == [t.emissions for t in texts]
    stats = [[e.stats.drafted for events in r.said.values() for e in events if e.stats] for r in (blind, seeing)]
    assert stats[0] == stats[1]


def test_passes_that_cannot_be_padded_are_refused(folders):
    model = load_model(folders["llama"])
    if not model.info.padded:  # compiled passes
        with pytest.raises(ConfigError, match="pads no pass; use passes='auto'"):
            Toy(model=model).resized(passes="padded").build()


def test_whole_numbers_of_torchao_or_a_sentence():
    weight, x = torch.randn(96, 64), torch.randn(3, 64)
    if find_spec("torchao") is None:
        with pytest.raises(ConfigError, match="pip install torchao, or use dtype='bf16'"):
            WholeLinear(weight, None, "int8")
    else:
        made = WholeLinear(weight, torch.ones(96), "int8")
        torch.testing.assert_close(made(x), x @ weight.t() + 1, atol=0.5, rtol=0.1)
        assert made.nbytes < weight.nbytes / 3


def lent():
    """A stand-in for `capture` without a GPU: every replay writes to the same memory, and spoils the other graphs'."""
    results = []

    def tensors(result):
        return [result.output.logits, *result.output.hidden.values(), result.summary]

    def capture(step, pool):
        mine = step()
        results.append(mine)

        def replay():
            fresh = step()
            with torch.inference_mode():
                for other in results:
                    for tensor in tensors(other):
                        tensor.fill_(torch.nan)
                for old, new in zip(tensors(mine), tensors(fresh), strict=True):
                    old.copy_(new)
            return mine

        return replay

    return capture


@pytest.mark.parametrize("drafter", ["none", "draft-model:model={folder},depth=4", BushyDrafter])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_graph_lends_is_used_before_the_next_replay(folders, models, monkeypatch, drafter, temperature):
    asks = [replace(ask, sampling=replace(ask.sampling, temperature=temperature, logprobs=2)) for ask in ASKS]
    expected = rig(folders, models, "padded", drafter).write(asks)
    monkeypatch.setattr(runners, "capture", lent())
    captured = rig(folders, models, "padded", drafter)
    for runner in (captured.engine.runner, *captured.runners):
        runner.padded.pool = runner.padded.pool or "a pool"
    assert captured.write(asks) == expected
    assert all(program.captured for program in captured.engine.runner.padded.kept.values())


@pytest.mark.gpu
@pytest.mark.filterwarnings(SCRIPT)
@pytest.mark.parametrize("shaping", [PADDED, INVARIANT, Shaping(LENGTH, kernel="flex")], ids=str)
def test_a_replayed_graph_says_what_the_step_says(folders, monkeypatch, shaping):
    model = load_model(folders["gemma2"], "float32", "cuda")
    found = []
    for rows in (runners.CAPTURED, 0):
        monkeypatch.setattr(runners, "CAPTURED", rows)
        runner = opened(model, shaping)
        feed(runner, some(30, 8))
        found.append((feed(runner, some(30))[1], crowd(runner, some(23)).logits.clone()))
    for graph, eager in zip(*found, strict=True):
        torch.testing.assert_close(graph, eager, atol=1e-5, rtol=1e-5)


def waiting(fetch):
    """`fetch` as the one call that may wait for the device."""

    def allowed(tensor):
        torch.cuda.set_sync_debug_mode("default")
        try:
            return fetch(tensor)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    return allowed


@pytest.mark.gpu
@pytest.mark.filterwarnings(PROTOTYPE)
def test_the_second_step_captures_nothing_and_waits_once(folders, monkeypatch):
    model = load_model(folders["llama"], "float32", "cuda")
    runner = opened(model, PADDED)
    slot, _ = feed(runner, some(9))
    captured = []

    def step(token):
        runner.run([Work(slot, (token,), logits=(0,))])
        runner.cache.keep(slot, (token,), (0,))

    step(1)
    monkeypatch.setattr(runners, "capture", lambda *_: captured.append(1))
    monkeypatch.setattr(host, "fetch", waiting(host.fetch))
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(2)
        step(3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not captured


@pytest.mark.gpu
@pytest.mark.filterwarnings(PROTOTYPE)
@pytest.mark.parametrize("drafter", ["none", "draft-model:model={folder},depth=3", BushyDrafter])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_waits_in_one_place(folders, monkeypatch, drafter, temperature):
    model = load_model(folders["llama"], "float32", "cuda")
    engine = rig(folders, {"llama": model}, "padded", drafter)
    asks = [replace(ask, sampling=replace(ask.sampling, temperature=temperature)) for ask in ASKS[:3]]
    first = engine.write(asks)
    allowed = waiting(host.fetch)
    for module in ("host", "sheet", "sampling"):
        monkeypatch.setattr(f"forerun.{module}.fetch", allowed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = engine.write(asks)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [t.tokens for t in again] == [t.tokens for t in first]
    assert engine.engine.stats.draft_failures == 0
