"""Compiled passes: a row's bits are its own, whatever shares the pass; whole-number weights do what they say."""

import os
import shutil
import sys
from dataclasses import replace
from itertools import combinations
from itertools import count as counted
from pathlib import Path
from subprocess import Popen
from threading import get_native_id
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from forerun.caches.contiguous import ContiguousCache
from forerun.caches.paged import PagedCache
from forerun.drafting.worth import reach
from forerun.engine.batch import flatten, pack, sent
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError, ModelError
from forerun.kernels import native
from forerun.layers.kv_rows import encode
from forerun.llm import LLM
from forerun.models import calibrate
from forerun.models import native as native_models
from forerun.models.load import load_model
from forerun.models.native import NativeTransformer, cores, rotated, threads_for
from forerun.testing import Ask, Toy
from forerun.types import Best, LayerPlan, Sampling, Sprout, Work

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
VOCAB = 96
CPU = torch.device("cpu")
PROMPT = "Once upon a time there was a small dog who liked to run in the park with his friend Tom. "
INT8_CACHE, WHOLE_SUMS = 1e-3, 2e-3  # divergence; and what whole queries and weights may change
GAPS = {("auto", "auto"): 1e-5, ("auto", "fp32"): 1e-5, ("auto", "int8"): WHOLE_SUMS}
COARSE = 3  # times as far: tile registers take float32 activations to one part in 2^18
DTYPES = ("auto", "bf16", "int8", "w8a8", "int4")
KINDS = (
    *((dtype, "auto") for dtype in DTYPES),
    ("auto", "int8"),
    ("int8", "int8"),
    ("auto", "bf16"),
    ("int8", "fp32"),
    ("auto", "fp32"),
)
SHAPES = {
    "llama": {"head_dim": 64, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "num_key_value_heads": 2},
    "gemma2": {"head_dim": 32, "sliding_window": 5, "num_key_value_heads": 1},
    "gpt_neox": {"hidden_size": 64},
}


def save(folder, family, dtype=torch.bfloat16, **changes):
    small = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "max_position_embeddings": 256}
    config = transformers.AutoConfig.for_model(family, **small | SHAPES[family] | changes)
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    for weight in theirs.parameters():
        weight.data = weight.data + torch.randn_like(weight) * 0.2
    theirs.to(dtype).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {family: save(tmp_path_factory.mktemp(family), family) for family in SHAPES}


@pytest.fixture(scope="module")
def models(folders):
    """One thread and two, float weights and whole ones, float caches and whole ones, of every family."""
    return {
        (family, threads, dtype, kv): load_model(folder, dtype, "cpu", threads, kv)
        for family, folder in folders.items()
        for threads in (1, 2)
        for dtype, kv in KINDS
    }


def opened(model, cache=ContiguousCache, slots=4, room=96):
    options = cache.Options(**({"block_size": 4} if cache is PagedCache else {}))
    return ModelRunner(model, cache(options, model.info.layout, slots, room))


def feed(runner, tokens, cuts=()):
    """Commit tokens in chunks; returns the slot and the logits of every row."""
    slot, _ = runner.cache.open(())
    rows = []
    for start, end in zip((0, *cuts), (*cuts, len(tokens)), strict=True):
        part = tuple(tokens[start:end])
        runner.cache.reserve(slot, len(part))
        rows.append(runner.run([Work(slot, part, logits=tuple(range(len(part))))])[0].logits)
        runner.cache.keep(slot, part, range(len(part)))
    return slot, torch.cat(rows)


tokens_of = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=70)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@given(data=st.data(), family=st.sampled_from(sorted(SHAPES)))
def test_a_row_does_not_depend_on_chunks_caches_or_threads(models, data, family, kind):
    tokens = data.draw(tokens_of)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1), max_size=4))) if len(tokens) > 1 else []
    _, whole = feed(opened(models[family, 1, *kind]), tokens)
    cache = data.draw(st.sampled_from([ContiguousCache, PagedCache]))
    _, parts = feed(opened(models[family, data.draw(st.sampled_from([1, 2])), *kind], cache), tokens, cuts)
    assert torch.equal(whole, parts)


WIDTHS = {"auto": (20, 64, 80, 256), "bf16": (64,), "int8": (64, 96), "fp32": (64, 256)}


@pytest.mark.parametrize(("kv", "dim"), [(kv, dim) for kv, dims in WIDTHS.items() for dim in dims])
def test_long_contexts_are_read_in_stretches_without_a_trace(tmp_path, kv, dim):
    folder = save(tmp_path, "llama", max_position_embeddings=2048, num_attention_heads=6, head_dim=dim)
    one, two = (load_model(folder, "auto", threads=threads, kv_dtype=kv) for threads in (1, 2))
    tokens = [i * i % VOCAB for i in range(1301)]
    _, whole = feed(opened(one, room=1400), tokens)
    _, parts = feed(opened(two, PagedCache, room=1400), tokens, (1, 255, 511, 512, 767, 1290, 1293, 1300))
    assert torch.equal(whole, parts)
    torchs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = torchs(torch.tensor([tokens])).logits[0]
    assert (whole - theirs).norm() < (1e-5 if kv == "fp32" else 0.03) * theirs.norm()


def grow_tree(data, nodes):
    """Any tree, or one that is deeper than a window is wide."""
    near = data.draw(st.sampled_from([2, nodes]))
    return (-1, *(data.draw(st.integers(max(-1, node - near), node - 1)) for node in range(1, nodes)))


def path_to(parents, node):
    found = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found[::-1]


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@given(data=st.data(), family=st.sampled_from(sorted(SHAPES)))
def test_a_node_of_a_tree_gets_the_bits_of_its_path_alone(models, data, family, kind):
    prompt = data.draw(tokens_of)
    parents = grow_tree(data, data.draw(st.integers(1, 20)))
    nodes = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(parents), max_size=len(parents)))
    neighbour = data.draw(tokens_of)
    model = models[family, data.draw(st.sampled_from([1, 2])), *kind]
    runner = opened(model, data.draw(st.sampled_from([ContiguousCache, PagedCache])))
    slot, _ = feed(runner, prompt)
    other, _ = feed(runner, neighbour)
    runner.cache.reserve(slot, len(nodes))
    runner.cache.reserve(other, 1)
    tree = Work(slot, tuple(nodes), parents, logits=tuple(range(len(nodes))))
    _, out = runner.run([Work(other, (1,), logits=(0,)), tree])
    node = data.draw(st.integers(0, len(nodes) - 1))
    path = path_to(parents, node)
    _, alone = feed(opened(models[family, 1, *kind]), [*prompt, *(nodes[i] for i in path)])
    assert torch.equal(out.logits[node], alone[-1])


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_hidden_siblings_leave_no_trace_where_scores_lie_far_apart(kind, tmp_path):
    folder = save(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    sharp = {name: weight * (3 if "q_proj" in name else 1) for name, weight in weights.items()}
    save_file(sharp, folder / "model.safetensors", {"format": "pt"})
    model = load_model(folder, kind[0], "cpu", 1, kind[1])
    prompt, path = [7 * i % VOCAB for i in range(70)], list(range(8))
    _, alone = feed(opened(model), [*prompt, *path])
    for hidden in (1, 2, 7, 15):
        runner = opened(model)
        slot, _ = feed(runner, prompt)
        parents = (*(-1 for _ in range(hidden + 1)), *range(hidden, hidden + len(path) - 1))
        runner.cache.reserve(slot, len(parents))
        work = Work(slot, (*range(40, 40 + hidden), *path), parents, logits=tuple(range(hidden, len(parents))))
        assert torch.equal(runner.run([work])[0].logits, alone[-len(path) :])


def loaded_for(isa, folder, *settings, **others):
    """The model by the kernels of one instruction set."""
    module = native.load()
    names = ("Arena", "Packed", "Decoder", "Team", "Session", "rotate")
    facade = SimpleNamespace(isas=lambda: [isa], **{name: getattr(module, name) for name in names})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "load", lambda: facade)
        return load_model(folder, *settings, **others)


@pytest.mark.parametrize("family", SHAPES)
def test_every_instruction_set_computes_the_same_function_row_by_row(folders, family):
    tokens, isas = list(range(30)), native.load().isas()
    for dtype, kv in KINDS:
        found = {}
        for isa in isas:
            model = loaded_for(isa, folders[family], dtype, kv_dtype=kv)
            _, found[isa] = feed(opened(model), tokens)
            assert torch.equal(found[isa], feed(opened(model), tokens, (1, 3, 10))[1])
        # where attention multiplies bfloat16, every instruction set rounds its sums in its own way
        for one, other in combinations(isas, 2):
            coarse = "amx" in (one, other) and dtype == "auto" and kv != "int8"
            gap = GAPS.get((dtype, kv), 0.03) * (COARSE if coarse else 1)
            assert (found[one] - found[other]).norm() < gap * found[other].norm(), (one, other, dtype, kv)


def test_whole_weights_are_the_nearest_multiples_of_their_scale():
    module, rng = native.load(), np.random.default_rng(0)
    weights = rng.standard_normal((40, 50)).astype(np.float32)
    packed = module.Packed(module.Arena(), 3, 40, 50)
    packed.fill(weights.ctypes.data, 0, np.arange(40))
    back = np.empty(50, np.float32)
    for row in range(40):
        packed.row(row, back.ctypes.data)
        scale = np.abs(weights[row]).max() / 127
        np.testing.assert_allclose(back, np.round(weights[row] / scale) * scale, atol=scale * 1e-3)


@pytest.mark.parametrize(("kind", "dtype"), [(0, torch.float32), (1, torch.float16), (2, torch.bfloat16)])
def test_float_weights_are_kept_to_the_bit(kind, dtype):
    module = native.load()
    weights = torch.randn(70, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
    packed, order = (
        module.Packed(module.Arena(), kind, 70, 33),
        torch.randperm(70, generator=torch.Generator().manual_seed(1)),
    )
    packed.fill(weights.data_ptr(), kind, order.numpy())
    back = torch.empty(33)
    for row, to in enumerate(order.tolist()):
        packed.row(to, back.data_ptr())
        assert torch.equal(back, weights[row].float())


def turn(x):
    """Blocks of 64 inputs, or of as many as divide them, by Hadamard's matrix."""
    block = min(64, x.shape[1] & -x.shape[1])
    matrix = torch.ones(1, 1)
    while len(matrix) < block:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return (x.reshape(-1, block) @ matrix / block**0.5).view_as(x)


@pytest.mark.parametrize("inputs", [1, 5, 6, 24, 33, 48, 64, 96, 320])
def test_inputs_are_rotated_by_blocks(inputs):
    rows = torch.randn(7, inputs, generator=torch.Generator().manual_seed(0))
    kept = rows.clone()
    torch.testing.assert_close(rotated(rows), turn(rows))
    torch.testing.assert_close(rotated(rotated(rows)), rows)
    assert torch.equal(rows, kept)


class Whole:
    """What compiled passes do in w8a8, in torch: whole weights per output and whole inputs per row, all rotated."""

    def __init__(self, inner):
        weight = turn(inner.weight.float())
        scales = weight.abs().amax(1, keepdim=True) / 127
        self.weight, self.bias = (weight / scales).round() * scales, inner.bias
        self.numel, self.nbytes = inner.numel, inner.nbytes

    def __call__(self, x):
        x = turn(x)
        high, low = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        middle, step = (high + low) / 2, (high - low) / 254
        return F.linear(((x - middle) / step).round() * step + middle, self.weight, self.bias)

    def onto(self, x, residual):
        return self(x) + residual


@pytest.mark.parametrize("family", SHAPES)
def test_w8a8_is_what_torch_makes_of_it(family, tmp_path, monkeypatch):
    folder, tokens = save(tmp_path, family, tie_word_embeddings=False), list(range(60))
    _, ours = feed(opened(load_model(folder, "w8a8", kv_dtype="fp32")), tokens)
    monkeypatch.setattr(native, "load", lambda: None)
    plain = load_model(folder)
    _, exact = feed(opened(plain), tokens)
    monkeypatch.setattr(calibrate, "Recorder", Whole)
    for layers in (range(2), None):
        plain, _ = calibrate.watched(plain, layers)
    _, theirs = feed(opened(plain), tokens)
    assert (ours - theirs).norm() < 0.2 * (ours - exact).norm()


def test_int8_stays_near_the_float_model(models):
    for family in SHAPES:
        _, exact = feed(opened(models[family, 1, "auto", "auto"]), list(range(40)))
        _, near = feed(opened(models[family, 1, "int8", "auto"]), list(range(40)))
        p = exact.softmax(-1)
        divergence = (p * (exact.log_softmax(-1) - near.log_softmax(-1))).sum(-1).mean()
        assert 0 < divergence < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_one_broken_output_reaches_the_logits(tmp_path, dtype, value):
    path = save(tmp_path, "llama") / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.0.mlp.up_proj.weight"][5, 7] = value  # one of the 72 inputs of the next matrix
    save_file(weights, path, {"format": "pt"})
    _, logits = feed(opened(load_model(tmp_path, dtype)), list(range(6)))
    assert not logits.isfinite().all(-1).any()


@pytest.mark.parametrize("first", [0, 5_000, 190_000])
def test_far_positions_turn_as_torch_turns_them(tmp_path, monkeypatch, first):
    folder = save(tmp_path, "llama", torch.float32, max_position_embeddings=200_000)

    def logits():
        runner = opened(load_model(folder, "fp32", "cpu", 1), slots=1)
        slot, _ = runner.cache.open(())
        flat = flatten([Work(slot, (5, 17, 40, 63), logits=(0, 1, 2, 3))], runner.cache)
        flat = flat._replace(positions=[first, first + 1, first + 77, first + 4_001])
        model = runner.model
        return (model.run(flat, runner.cache) if model.follows else model.forward(sent(flat, CPU), runner.cache)).logits

    mine = logits()
    monkeypatch.setattr(native, "load", lambda: None)
    torch.testing.assert_close(mine, logits(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_every_stored_precision_gives_torchs_logits(tmp_path, monkeypatch, stored):
    folder = save(tmp_path, "llama", stored)
    _, ours = feed(opened(load_model(folder)), list(range(30)))
    monkeypatch.setattr(native, "load", lambda: None)
    _, plain = feed(opened(load_model(folder)), list(range(30)))
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)


def test_int8_without_compiled_passes_is_refused(folders, monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)
    with pytest.raises(ConfigError, match=r"dtype 'int8' cannot run .*; use dtype='auto'"):
        load_model(folders["llama"], "int8")
    assert load_model(folders["llama"], "fastest").info.layout.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_which_thread_takes_which_piece(dtype, tmp_path):
    folder = save(tmp_path, "llama", hidden_size=256, intermediate_size=1600, num_hidden_layers=1)
    alone, shared = (opened(load_model(folder, dtype, threads=threads, kv_dtype="auto")) for threads in (1, 3))
    for rows in (1, 3, 8, 19):
        work = Work(alone.cache.open(())[0], tuple(range(1, 1 + rows)), logits=tuple(range(rows)))
        want = alone.run([work])[0].logits
        alone.cache.close(work.slot)
        for _ in range(5):
            slot = shared.cache.open(())[0]
            assert torch.equal(shared.run([work._replace(slot=slot)])[0].logits, want)
            shared.cache.close(slot)


def chain_of(runner, prompts, depth):
    """What greedy chains of some prompts find, one more level for each: by passes of their own or in a row."""
    slots = [runner.cache.open(())[0] for _ in prompts]

    def steps(found):
        for level in range(depth + len(prompts) - 1):
            works = []
            for at, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
                if level >= depth + at:
                    continue
                runner.cache.reserve(slot, 1 if level else len(prompt))
                if level:
                    parents = tuple(range(-1, level - 1))
                    works.append(Work(slot, (found.get(at, 0),), parents, level - 1, logits=(0,)))
                else:
                    works.append(Work(slot, prompt, logits=(0, len(prompt) - 1)))
            yield works
            if level == 0:
                for slot, prompt in zip(slots, prompts, strict=True):
                    runner.cache.keep(slot, prompt, range(len(prompt)))

    return slots, steps


@pytest.mark.parametrize("cache", [ContiguousCache, PagedCache])
@pytest.mark.parametrize(("dtype", "kv"), [("auto", "auto"), ("int8", "int8")])
@pytest.mark.parametrize("family", SHAPES)
def test_passes_in_a_row_find_what_they_find_one_by_one(models, family, dtype, kv, cache):
    prompts, depth = [(5, 9, 1), (7, 7, 30, 2, 4)], 6
    single = opened(models[family, 1, dtype, kv], cache)
    _, steps = chain_of(single, prompts, depth)
    alone, found = [], {}
    for works in steps(found):
        alone.append(single.run(works))
        found.update(enumerate([output.best[-1] for output in alone[-1]], len(prompts) - len(works)))
    row = opened(models[family, 2, dtype, kv], cache)
    assert row.follows(asks=False)
    assert not row.follows(asks=True)
    slots, steps = chain_of(row, prompts, depth)
    together = row.follow(steps({}))
    assert [[(o.best, o.peak, o.mass) for o in outputs] for outputs in together] == [
        [(o.best, o.peak, o.mass) for o in outputs] for outputs in alone
    ]
    assert torch.equal(together[-1][0].logits, alone[-1][0].logits)
    tokens = [outputs[-1].best[-1] for outputs in together[:-1]]
    row.cache.keep(slots[1], tokens, range(len(tokens)))  # what was read on the way is in the cache
    row.cache.reserve(slots[1], 1)
    after = row.run([Work(slots[1], (together[-1][0].best[0],), logits=(0,))])[0].logits
    fresh = opened(models[family, 1, dtype, kv])
    _, rows = feed(fresh, (*prompts[1], *tokens, together[-1][0].best[0]))
    assert torch.equal(after[0], rows[-1])


def test_no_pass_in_a_row_finds_nothing(models):
    assert opened(models["llama", 1, "auto", "auto"]).follow([]) == []


@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"repetition_penalty": 1.5}], ids=lambda some: str(*some)
)
def test_a_chain_drafted_in_one_go_is_the_one_drafted_by_levels(folders, models, monkeypatch, sampling, verifier):
    def write():
        rig = Toy(
            drafter=f"draft-model:model={folders['gemma2']},tree=chain,depth=5",
            verifier=verifier,
            model=models["llama", 1, "auto", "auto"],
        )
        built = rig.resized(max_requests=3, max_step_tokens=24, context_length=96, draft_timeout=300.0).build()
        asks = [Ask((5 + n, 9, 1), Sampling(max_tokens=20, seed=n, **sampling)) for n in range(5)]
        said = [text.emissions for text in built.write(asks)]
        assert built.engine.stats.draft_failures == 0
        return said, [[e.stats.drafted for e in events if e.stats] for events in built.said.values()]

    real, rows = NativeTransformer.follow, []
    monkeypatch.setattr(NativeTransformer, "follow", lambda *given: rows.append(real(*given)) or rows[-1])
    at_once = write()
    assert bool(rows) == ("repetition_penalty" not in sampling), "what an output bends is asked token by token"
    assert all(len(passes) > 1 for passes in rows)
    monkeypatch.setattr(NativeTransformer, "follows", False)
    assert write() == at_once


@pytest.fixture
def drafts(folders, models, monkeypatch):
    """What some requests write by drafts of a compiled model; every draft, those that grew in one go, failures, and
    how many nodes were looked behind.
    """

    def write(family, drafter, *, at_once, sampling, length=96, folder=None, bar=0.0):
        monkeypatch.setattr(ModelRunner, "branches", at_once)
        monkeypatch.setattr(ModelRunner, "aside", False)
        spelled = f"draft-model:model=({folder or folders[family]}){drafter}"
        rig = Toy(drafter=spelled, planner=f"fixed:nodes=8,bar={bar}", model=models[family, 1, "auto", "auto"])
        built = rig.resized(max_requests=3, max_step_tokens=48, context_length=length, draft_timeout=300.0).build()
        inner, found, grown = built.engine.members.drafter.inner, [], []
        propose, follow_best, run, read = inner.propose, inner.runner.follow_best, inner.runner.run, []
        monkeypatch.setattr(inner, "propose", lambda *given: found.append(propose(*given)) or found[-1])
        monkeypatch.setattr(inner.runner, "follow_best", lambda *given: grown.append(follow_best(*given)) or grown[-1])
        monkeypatch.setattr(inner.runner, "run", lambda work: read.extend(w for w in work if w.parents) or run(work))
        asks = [Ask((5 + n, 9, 1), replace(sampling, seed=n)) for n in range(5)]
        said = [text.emissions for text in built.write(asks)]
        looked = sum(len(w.tokens) for w in read) + sum(len(tree.read) for trees in grown for tree in trees)
        return said, found, grown, built.engine.stats.draft_failures, looked

    return write


GREEDY = Sampling(temperature=0.0, max_tokens=24)


@pytest.mark.parametrize(
    "options",
    [
        ",tree=opt-tree,cache=paged,dtype=int8",
        ",tree=(opt-tree:gain=0),depth=4",
        ",tree=(opt-tree:nodes=5,gain=0.02)",
    ],
)
@pytest.mark.parametrize("family", SHAPES)
def test_a_tree_grown_in_one_go_is_the_one_grown_by_levels(drafts, family, options):
    said, found, grown, failures, looked = drafts(family, options, at_once=True, sampling=GREEDY)
    assert any(len(trees) > 1 for trees in grown)
    assert not failures
    assert any(len(set(tree.parents)) < len(tree.parents) for trees in grown for tree in trees), "nothing branched"
    assert (said, found, [], 0, looked) == drafts(family, options, at_once=False, sampling=GREEDY)


@pytest.mark.parametrize("family", SHAPES)
def test_nodes_below_the_bar_are_left_out_in_one_go_as_by_levels(drafts, family):
    asked = {"sampling": GREEDY, "bar": 0.05}
    said, found, grown, failures, looked = drafts(family, ",tree=(opt-tree:gain=0)", at_once=True, **asked)
    assert any(grown)
    assert not failures
    assert (said, found, [], 0, looked) == drafts(family, ",tree=(opt-tree:gain=0)", at_once=False, **asked)
    chances = [chance for batch in found for draft in batch for chance in reach(draft, draft.confidence)]
    assert min(chances) >= 0.05
    _, every, *_ = drafts(family, ",tree=(opt-tree:gain=0)", at_once=True, sampling=GREEDY)
    chances = [chance for batch in every for draft in batch for chance in reach(draft, draft.confidence)]
    assert min(chances) < 0.05 < max(chances)


def test_near_the_end_of_the_room_trees_grow_by_levels(drafts):
    asked = {"sampling": replace(GREEDY, max_tokens=60), "length": 64}
    said, found, grown, *_ = drafts("llama", ",tree=opt-tree,depth=12", at_once=True, **asked)
    assert 0 < sum(map(len, grown)) < sum(bool(draft) for batch in found for draft in batch)
    assert (said, found) == drafts("llama", ",tree=opt-tree,depth=12", at_once=False, **asked)[:2]


@pytest.mark.parametrize("sampling", [replace(GREEDY, temperature=1.0), replace(GREEDY, repetition_penalty=1.3)])
def test_a_tree_grows_in_one_go_at_any_temperature_but_not_where_logits_are_bent(drafts, sampling):
    said, found, grown, *_ = drafts("llama", ",tree=opt-tree", at_once=True, sampling=sampling)
    assert bool(grown) == (sampling.temperature == 1)
    assert (said, found) == drafts("llama", ",tree=opt-tree", at_once=False, sampling=sampling)[:2]


def test_unasked_what_is_chosen_is_a_tree_and_what_is_drawn_a_chain(drafts):
    _, found, grown, *_ = drafts("llama", "", at_once=True, sampling=GREEDY)
    assert grown
    assert any(tuple(draft.parents) != tuple(range(-1, len(draft) - 1)) for batch in found for draft in batch)
    for sampling, at_once in ((replace(GREEDY, temperature=1.0), True), (GREEDY, False)):
        _, found, grown, *_ = drafts("llama", "", at_once=at_once, sampling=sampling)
        assert not grown
        assert all(tuple(draft.parents) == tuple(range(-1, len(draft) - 1)) for batch in found for draft in batch)
        assert max(len(draft) for batch in found for draft in batch) == 4


def test_a_broken_row_ends_a_tree_and_costs_no_text(drafts, folders, tmp_path):
    tensors = load_file(folders["llama"] / "model.safetensors")
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.embed_tokens.weight"][11::7] = float("nan")
    shutil.copytree(folders["llama"], tmp_path / "broken")
    save_file(tensors, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    broken = {"sampling": GREEDY, "folder": tmp_path / "broken"}
    said, found, grown, failures, looked = drafts("llama", ",tree=opt-tree", at_once=True, **broken)
    assert any(not tree.sound for trees in grown for tree in trees)
    assert failures
    sound, *_ = drafts("llama", ",tree=opt-tree", at_once=True, sampling=GREEDY)
    assert [[e.token for e in text] for text in said] == [[e.token for e in text] for text in sound]
    assert (said, found, [], failures, looked) == drafts("llama", ",tree=opt-tree", at_once=False, **broken)


@pytest.fixture
def ahead(folders, models, monkeypatch):
    """What requests write and every draft of theirs; how many drafts grew ahead, how many failed, and preemptions."""

    def write(family, drafter, *, aside, shares, sampling, blocks=0, change=lambda _: None):
        monkeypatch.setattr(ModelRunner, "aside", aside)
        cache = f"paged:block_size=4,blocks={blocks}" if blocks else "contiguous"
        spelled = f"draft-model:model=({folders[family]}){drafter}"
        rig = Toy(drafter=spelled, planner="fixed:nodes=8", cache=cache, model=models[family, 1, "auto", "auto"])
        built = rig.resized(max_requests=3, max_step_tokens=48, context_length=96, draft_timeout=300.0).build()
        engine, planner, inner = built.engine, built.engine.members.planner, built.engine.members.drafter.inner
        found, grew, steps = [], [], counted()
        propose, begin = inner.propose, inner.runner.begin_best
        monkeypatch.setattr(planner, "share", lambda batch, _: shares([c.id for c in batch], next(steps)))
        monkeypatch.setattr(inner, "propose", lambda *given: found.append(propose(*given)) or found[-1])
        monkeypatch.setattr(inner.runner, "begin_best", lambda *given: grew.append(len(given[0])) or begin(*given))
        change(inner)
        asks = [Ask((5 + n, 9, 1), replace(sampling, seed=n)) for n in range(5)]
        said = [text.emissions for text in built.write(asks)]
        return said, found, sum(grew), engine.stats.draft_failures, engine.stats.preemptions

    return write


LONG = replace(GREEDY, ignore_eos=True)


def steady(ids, step):
    return [4] * len(ids)


def changing(ids, step):
    return [(3 * (step // 3) + number * step) % 5 for number in ids]


@pytest.mark.parametrize("shares", [steady, changing])
@pytest.mark.parametrize("options", ["", ",tree=opt-tree,cache=paged,dtype=int8", ",tree=(opt-tree:gain=0),depth=4"])
@pytest.mark.parametrize("family", SHAPES)
def test_a_draft_that_grew_ahead_is_the_one_that_is_asked_for(ahead, family, options, shares):
    said, found, grew, failures, _ = ahead(family, options, aside=True, shares=shares, sampling=LONG)
    assert grew > 20
    assert (said, found, 0, 0, 0) == ahead(family, options, aside=False, shares=shares, sampling=LONG)
    assert not failures


def test_drafts_grow_ahead_to_the_end_of_a_text(ahead):
    """Its last budgets are smaller, which is foreseen; only the first draft of each has to be waited for."""
    _, found, grew, *_ = ahead("llama", "", aside=True, shares=steady, sampling=LONG)
    assert grew == sum(map(len, found)) - 5


@pytest.mark.parametrize("options", ["", ",cache=paged"])
def test_who_ends_while_his_draft_grows_leaves_his_place_to_the_next(ahead, options):
    asked = {"shares": steady, "sampling": replace(LONG, stop_token_ids=tuple(range(0, VOCAB, 9)))}
    said, found, grew, failures, _ = ahead("llama", options, aside=True, **asked)
    assert grew > 5
    assert any(len(text) < LONG.max_tokens for text in said)
    assert not failures
    assert (said, found) == ahead("llama", options, aside=False, **asked)[:2]


def test_whoever_loses_his_place_loses_what_grew_ahead(ahead):
    asked = {"shares": steady, "sampling": LONG, "blocks": 16}
    said, found, grew, failures, preempted = ahead("llama", "", aside=True, **asked)
    assert grew > 20
    assert preempted
    assert (said, found, 0, failures, preempted) == ahead("llama", "", aside=False, **asked)


def test_a_text_that_goes_on_otherwise_forgets_what_grew_ahead(ahead):
    def mislead(inner):
        judged = inner.observe

        def observe(batch, outcomes):
            wrong = [
                o._replace(verdict=o.verdict._replace(token=o.verdict.token ^ 1)) if o.verdict else o for o in outcomes
            ]
            judged(batch, wrong)

        inner.observe = observe

    misled = ahead("llama", "", aside=True, shares=steady, sampling=LONG, change=mislead)
    assert misled[2] > 20
    assert misled[:2] == ahead("llama", "", aside=False, shares=steady, sampling=LONG)[:2]


def test_what_breaks_while_it_grows_ahead_costs_drafts_and_no_text(ahead):
    def later(inner):
        begin, turns = inner.runner.begin_best, counted()

        def started(*given):
            found = begin(*given)
            if next(turns) != 1 or found is None:
                return found

            def end():
                found()
                raise ValueError("the model broke")

            return end

        inner.runner.begin_best = started

    said, _, grew, failures, _ = ahead("llama", "", aside=True, shares=steady, sampling=LONG, change=later)
    assert grew
    assert failures == 1
    sound, *_ = ahead("llama", "", aside=False, shares=steady, sampling=LONG)
    assert [[e.token for e in text] for text in said] == [[e.token for e in text] for text in sound]


def growing(model, slots=1):
    """Trees that grow behind three tokens each, and what waits for them."""
    runner = opened(model, slots=slots)
    return runner, runner.begin_best(sprouts(runner.cache, slots))


def sprouts(cache, slots):
    """Where trees grow, behind three tokens each."""
    rule, found = Best(6, 4, 0.0), []
    for n in range(slots):
        slot, _ = cache.open(())
        assert cache.reserve(slot, 3 + rule.beyond)
        found.append(Sprout(0, (5 + n, 9, 1), cache.read_ahead(slot, (5 + n, 9, 1), rule.beyond), rule))
    return found


@pytest.mark.parametrize(("threads", "helpers"), [(1, 1), (1, 2), (2, 2)])
def test_trees_grow_beside_the_host_or_when_they_are_asked_for(models, monkeypatch, threads, helpers):
    model = models["llama", threads, "auto", "auto"]
    monkeypatch.setattr(native_models, "widest", lambda: helpers)
    assert NativeTransformer.aside.func(model) == (threads < helpers)
    for _ in range(50):
        runner, end = growing(model, slots=3)
        with pytest.raises(RuntimeError, match="grow here already"):
            model.begin_best([], runner.cache)
        trees = end()
        other = opened(model, slots=3)
        assert trees == other.follow_best(sprouts(other.cache, 3))
        with pytest.raises(RuntimeError, match="no trees grow here"):
            end()


def test_trees_that_nobody_waits_for_are_let_go(models):
    for _ in range(200):
        growing(models["llama", 1, "auto", "auto"])


def test_a_pass_waits_for_a_thread_that_grows_trees(models):
    wide = models["llama", 2, "auto", "auto"]
    _, alone = feed(opened(wide), list(range(40)))
    for _ in range(100):
        _, end = growing(models["llama", 1, "auto", "auto"])
        _, beside = feed(opened(wide), list(range(40)))
        assert torch.equal(alone, beside)
        assert all(tree.sound for tree in end())


def test_a_forked_process_waits_for_no_trees(models):
    _, end = growing(models["llama", 1, "auto", "auto"])
    child = os.fork()
    if not child:
        try:
            end()
        except ModelError as error:
            os._exit(7 if "load the model in the child" in str(error) else 8)
        os._exit(7)  # nobody had begun
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert end()[0].tokens


def test_small_models_run_on_one_thread_and_larger_ones_on_all():
    assert threads_for((16 << 20) - 1) == 1
    assert threads_for(16 << 20) == cores()


@pytest.mark.parametrize("family", SHAPES)
def test_a_pass_says_what_stands_out_in_its_logits(models, family):
    model = models[family, 2, "auto", "auto"]
    runner = opened(model)
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, 20)
    output = runner.run([Work(slot, tuple(range(20)), logits=tuple(range(20)))])[0]
    assert output.best == tuple(output.logits.argmax(-1).tolist())
    assert output.peak == tuple(output.logits.max(-1).values.tolist())
    chances = output.logits.double().softmax(-1).max(-1).values
    np.testing.assert_allclose([1 / m for m in output.mass], chances, rtol=1e-5)


@pytest.mark.parametrize("vocab", [5003, 40000])  # in five parts, and in 32
def test_of_equal_logits_the_first_stands_out(tmp_path, vocab):
    folder, tokens = save(tmp_path, "llama", torch.float32, vocab_size=vocab), tuple(range(40))
    tensors = load_file(folder / "model.safetensors")
    embed = tensors["model.embed_tokens.weight"]
    embed[:200] = embed[200:400]  # within a part, and
    embed[vocab // 2 : vocab // 2 * 2] = embed[: vocab // 2].clone()  # in another
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for isa in native.load().isas():
        runner = opened(loaded_for(isa, folder))
        slot, _ = runner.cache.open(())
        runner.cache.reserve(slot, len(tokens))
        output = runner.run([Work(slot, tokens, logits=tokens)])[0]
        logits = np.asarray(output.logits)
        assert all((row == row.max()).sum() > 1 for row in logits)
        assert output.best == tuple(logits.argmax(-1))  # the first of them
        mass = np.exp(logits.astype(float) - logits.max(-1, keepdims=True)).sum(-1)
        np.testing.assert_allclose(output.mass, mass, rtol=1e-5)


def test_a_broken_row_is_reported_as_such(tmp_path):
    folder = save(tmp_path, "llama", torch.float32)
    model = load_model(folder)
    runner = opened(model)
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, 2)
    runner.cache.rows.keys[0].fill_(torch.nan)
    first, second = runner.run([Work(slot, (1, 2), logits=(0, 1))])[0].peak
    assert np.isfinite([first, second]).all()  # what nobody may see is not looked at
    runner.cache.keep(slot, (1, 2), (0, 1))
    runner.cache.rows.keys[0].fill_(torch.nan)
    runner.cache.reserve(slot, 1)
    assert np.isnan(runner.run([Work(slot, (3,), logits=(0,))])[0].peak[0])


def test_of_several_best_tokens_the_first_is_reported(tmp_path):
    config = {"hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 1, "num_attention_heads": 4}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=VOCAB, **config))
    theirs.model.norm.weight.data.zero_()  # every logit is zero, whatever the row
    theirs.save_pretrained(tmp_path)
    runner = opened(load_model(tmp_path))
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, 3)
    output = runner.run([Work(slot, (1, 2, 3), logits=(0, 1, 2))])[0]
    assert output.best == (0, 0, 0)
    assert output.mass == (VOCAB, VOCAB, VOCAB)


@pytest.mark.parametrize("token", [-1, VOCAB, 2**40])
def test_a_token_that_does_not_exist_is_refused(models, token):
    runner = opened(models["llama", 1, "auto", "auto"])
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, 2)
    with pytest.raises(IndexError, match=rf"row 1 of a pass has token {token} at position 1"):
        runner.run([Work(slot, (1, token), logits=(1,))])


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_threads_that_share_one_core_sleep_and_wake_at_every_meeting(models):
    model = models["llama", 2, "auto", "auto"]
    _, wanted = feed(opened(model), [1, 2, 3])
    cores, threads = os.sched_getaffinity(0), [int(task.name) for task in Path("/proc/self/task").iterdir()]
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(cores)})
        found = [feed(opened(model), [1, 2, 3])[1] for _ in range(20)]
    finally:
        for thread in threads:
            os.sched_setaffinity(thread, cores)
    assert all(torch.equal(logits, wanted) for logits in found)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_a_thread_that_another_program_holds_up_stays_away_and_comes_back(models):
    model = models["llama", 2, "auto", "auto"]
    runner, wanted = opened(model), feed(opened(model), [1, 2, 3])[1]
    cores, threads = os.sched_getaffinity(0), [int(task.name) for task in Path("/proc/self/task").iterdir()]
    threads.remove(get_native_id())

    def coming(count):
        """Whether so many come in the end to passes that all find the same."""
        end = perf_counter() + 60
        while perf_counter() < end and model._team.coming != count:
            slot, found = feed(runner, [1, 2, 3])
            runner.cache.close(slot)
            assert torch.equal(found, wanted)
        return model._team.coming == count

    assert coming(2)
    other = Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{min(cores)}}})\nwhile True: pass"])
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(cores)})
        assert coming(1)
    finally:
        other.kill()
        other.wait()
        for thread in threads:
            os.sched_setaffinity(thread, cores)
    assert coming(2)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="nothing says here what threads do")
def test_a_small_model_s_wide_passes_are_shared_with_the_threads_of_a_larger_one(folders, models, monkeypatch):
    assert models["llama", 2, "auto", "auto"]  # whose threads these are
    monkeypatch.setattr(native_models, "widest", lambda: 2)
    small, tokens = load_model(folders["llama"]), list(range(40))
    monkeypatch.setattr(native_models, "SHARED_WORK", 20 * small.numel)
    runner, wanted = opened(small), feed(opened(models["llama", 1, "auto", "auto"]), tokens)[1]

    def others(cuts, seconds):
        """Whether other threads run for some time while these parts are read again and again."""
        begun, end = _others(), perf_counter() + seconds
        while perf_counter() < end and _others() < begun + 0.1:
            slot, found = feed(runner, tokens, cuts)
            runner.cache.close(slot)
            assert torch.equal(found, wanted)
        return _others() >= begun + 0.1

    assert not others((10, 20, 30), 0.5)
    assert others((20,), 60)


def _others():
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != get_native_id()]
    ticks = [sum(map(int, (task / "stat").read_text().rpartition(")")[2].split()[11:13])) for task in tasks]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def test_models_that_run_on_as_many_threads_share_them():
    pair = [load_model(name, threads=2) for name in ("reference", "reference-drafter")]
    assert pair[0]._team is pair[1]._team
    assert pair[0]._team.size == 2
    assert load_model("reference-drafter", threads=1)._team is not pair[0]._team


def test_a_forked_process_is_told_to_load_its_own_model(models):
    model = models["llama", 2, "auto", "auto"]
    child = os.fork()
    if not child:
        try:
            feed(opened(model), [1, 2, 3])
        except ModelError as error:
            os._exit(7 if "load it in the child" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_four_bit_weights_are_the_nearest_that_their_groups_allow():
    module, rng = native.load(), np.random.default_rng(0)
    weights = rng.standard_normal((40, 100)).astype(np.float32) * rng.uniform(0.1, 3, (40, 1)).astype(np.float32)
    packed = module.Packed(module.Arena(), 4, 40, 100)
    packed.fill(weights.ctypes.data, 0, np.arange(40))
    back = np.empty((40, 100), np.float32)
    for row in range(40):
        packed.row(row, back[row : row + 1].ctypes.data)
    groups = np.pad(weights, ((0, 0), (0, 28))).reshape(40, 4, 32)
    step = np.abs(groups).max(axis=2, keepdims=True) / 8  # of four bits with a scale per group
    rounded = np.clip(np.round(groups / step), -8, 7) * step
    ours, theirs = ((made.reshape(40, -1)[:, :100] - weights) ** 2 for made in (back, rounded))
    assert ours.mean() < theirs.mean()
    assert np.abs(back - weights).max() < 1.5 * step.max()


def test_passes_keep_the_codes_that_the_plain_cache_would(models):
    tokens = list(range(40))
    for family in SHAPES:
        exact, whole = (opened(models[family, 1, "auto", kv]) for kv in ("fp32", "int8"))
        for runner in (exact, whole):
            feed(runner, tokens)
        for part in ("key", "value"):  # those of the first layer do not depend on earlier ones
            strip = getattr(exact.cache.rows, f"{part}s")[0][:, : len(tokens)]
            codes, scales = encode(strip)
            assert torch.equal(getattr(whole.cache.rows, f"{part}s")[0][:, : len(tokens)], codes)
            assert torch.equal(getattr(whole.cache.rows, f"{part}_scales")[0][:, : len(tokens)], scales)


def divergence_of(exact, other):
    p = exact.double().log_softmax(-1)
    return float((p.exp() * (p - other.double().log_softmax(-1))).sum(-1).mean())


@pytest.mark.parametrize("family", SHAPES)
def test_int8_keys_and_values_cost_little(models, family):
    tokens = [i * 7 % VOCAB for i in range(90)]
    _, exact = feed(opened(models[family, 1, "auto", "auto"]), tokens)
    _, near = feed(opened(models[family, 1, "auto", "int8"]), tokens)
    assert 0 < divergence_of(exact, near) < INT8_CACHE


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("cache", [ContiguousCache, PagedCache])
def test_the_plain_path_reads_int8_keys_and_values(folders, models, monkeypatch, family, cache):
    tokens, tree = list(range(30)), ((5, 6, 7, 8), (-1, -1, 0, 0))
    monkeypatch.setattr(native, "load", lambda: None)
    plain = load_model(folders[family], kv_dtype="int8")
    monkeypatch.undo()
    found = []
    for runner in (opened(plain, cache), opened(models[family, 1, "auto", "int8"], cache)):
        slot, rows = feed(runner, tokens, (11,))
        runner.cache.reserve(slot, 4)
        nodes = runner.run([Work(slot, *tree, logits=(0, 1, 2, 3))])[0].logits
        runner.cache.keep(slot, (5, 8), (0, 3))
        assert all(part.dtype == torch.float32 for pair in runner.cache.snapshot(slot) for part in pair)
        runner.cache.reserve(slot, 1)
        found.append(torch.cat([rows, nodes, runner.run([Work(slot, (9,), logits=(0,))])[0].logits]))
    assert (found[0] - found[1]).norm() < WHOLE_SUMS * found[0].norm()


def test_many_equal_keys_of_large_values_do_not_overflow(tmp_path):
    model = load_model(save(tmp_path, "llama", max_position_embeddings=80_000), kv_dtype="int8")
    rows = []
    for count in (20_000, 70_000):  # 32 bits hold the sum of 66,000 of the largest products
        cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, count + 1)
        runner, (slot, _) = ModelRunner(model, cache), cache.open(())
        tokens = (0,) * count
        cache.advance(pack([Work(slot, tokens)], cache, torch.device("cpu")).segments)
        cache.keep(slot, tokens, range(count))
        for layer in range(model.info.num_layers):
            cache.rows.key_scales[layer].zero_()
            cache.rows.values[layer].fill_(127)
            cache.rows.value_scales[layer].fill_(100)
        rows.append(runner.run([Work(slot, (1,), plan=LayerPlan((0,)), logits=(0,))])[0].logits)
    assert (rows[0] - rows[1]).abs().max() < 0.02 * rows[0].abs().max()


def test_a_broken_int8_row_is_reported_as_such(models):
    runner = opened(models["llama", 1, "auto", "int8"])
    slot, _ = feed(runner, [1, 2, 3])
    for scales in (runner.cache.rows.key_scales, runner.cache.rows.value_scales):
        before = scales[0].clone()
        scales[0][0, 1] = torch.nan
        runner.cache.reserve(slot, 1)
        assert np.isnan(runner.run([Work(slot, (4,), logits=(0,))])[0].peak[0])
        runner.cache.keep(slot, (), ())
        scales[0].copy_(before)
    runner.cache.reserve(slot, 1)
    assert np.isfinite(runner.run([Work(slot, (4,), logits=(0,))])[0].peak[0])


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_speculative_text_is_plain_text_over_an_int8_cache(dtype, cache):
    texts = []
    for drafter in ("none", "draft-model:depth=3,tree=level", "ngram"):
        llm = LLM(
            "reference", drafter=drafter, planner="fixed", dtype=dtype, kv_dtype="int8", cache=cache, max_requests=2
        )
        assert llm.model.info.layout.stored == torch.int8
        results = llm.generate([PROMPT, PROMPT * 9], Sampling(temperature=0, max_tokens=60))
        texts.append([result.tokens for result in results])
        assert drafter == "none" or results[0].stats.steps < len(results[0].tokens)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("dim", [24, 80, 128])
def test_int8_heads_of_any_width(tmp_path, monkeypatch, dim):
    folder, tokens = save(tmp_path, "llama", head_dim=dim), [i * 5 % VOCAB for i in range(90)]
    _, ours = feed(opened(load_model(folder, kv_dtype="int8")), tokens)
    _, parts = feed(opened(load_model(folder, kv_dtype="int8"), PagedCache), tokens, (1, 30, 71))
    assert torch.equal(ours, parts)
    monkeypatch.setattr(native, "load", lambda: None)
    _, plain = feed(opened(load_model(folder, kv_dtype="int8")), tokens)
    assert (ours - plain).norm() < WHOLE_SUMS * plain.norm()
