"""A pass in one launch says what layer after layer says, and a row has the bits that it has alone.

Where there is no GPU, the kernel's own source runs on a CPU, thread by thread (`emulate.h`).
"""

import ctypes
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from forerun import build, host
from forerun.caches.contiguous import ContiguousCache
from forerun.caches.paged import PagedCache
from forerun.engine.batch import flatten
from forerun.engine.grid import Shaping
from forerun.engine.runner import ModelRunner
from forerun.growth import leaves
from forerun.kernels import launch
from forerun.models import resident
from forerun.models.load import load_model
from forerun.models.transformer import Transformer, parts
from forerun.testing import Ask, BushyDrafter, Toy
from forerun.types import LayerPlan, Sampling, Work

VOCAB, LENGTH, BLOCKS, ROOM = 99, 400, 3, 90_000
SMALL = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
FAMILIES = {
    "llama": {},
    "qwen2": {  # biases, a window in one layer, one key head
        "head_dim": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    # inputs that no warp can hold at once, a tied head
    "mistral": {"intermediate_size": 4608, "head_dim": 128, "sliding_window": None, "tie_word_embeddings": True},
}
TREE = ((5, 9, 11, 7, 30, 31, 2), (-1, -1, 0, 0, 1, 3, 4))
PLACES = [
    pytest.param("cpu", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
HERE = Path(__file__).parent


def some(length, seed=0):
    return tuple(torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    def save(family):
        folder = tmp_path_factory.mktemp(family)
        torch.manual_seed(3)
        config = transformers.AutoConfig.for_model(family, **SMALL | FAMILIES[family])
        theirs = transformers.AutoModelForCausalLM.from_config(config)
        for weight in theirs.parameters():
            weight.data = weight.data + torch.randn_like(weight) * 0.05
        theirs.to(torch.bfloat16).save_pretrained(folder)
        return folder

    return {family: save(family) for family in FAMILIES}


def aligned(model):
    """With weights of its own, as a GPU has them; a CPU reads them where they lie in the file."""
    for layer in model.layers:
        for part in parts(layer):
            part.weight = part.weight.clone()
        for norm in (layer.weights.attention_norm, layer.weights.mlp_norm):
            norm.gain = norm.gain.clone()
    model.ends.head.weight = model.ends.head.weight.clone()
    model.ends.final_norm.gain = model.ends.final_norm.gain.clone()
    model.ends = replace(model.ends, embed=model.ends.embed.clone())
    return model


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """A stand-in for `launch.launcher`: the source, compiled for this processor."""
    folder, made = tmp_path_factory.mktemp("emulated"), {}

    def launcher(model, seed, rows):
        sizes = resident.sizes_of(model, BLOCKS, ROOM, rows)
        shared = sizes["STAGES"] * (resident.STAGE + 16) + sizes["DESK"]
        macros = tuple(f"-D{key}={value}" for key, value in sizes.items())
        if macros not in made:
            text, library = folder / f"{len(made)}.cpp", folder / f"{len(made)}.so"
            run = 'extern "C" void run(const Params* p, unsigned seed, size_t shared) {'
            run += " emulate(BLOCKS, shared, seed, forerun_pass, *p); }"
            run += ' extern "C" size_t bytes() { return sizeof(Params); }'
            source = (launch.SOURCES / "pass.cu").read_text()
            text.write_text(f'#include "{HERE.parent / "kernels" / "emulate.h"}"\n{source}\n{run}\n')
            flags = ["-O1", "-std=c++20", "-shared", "-fPIC", "-w", *macros]
            subprocess.run(["g++", *flags, "-o", library, text], check=True)
            made[macros] = ctypes.CDLL(str(library))
        library = made[macros]
        library.bytes.restype = ctypes.c_size_t

        def run_it(params):
            assert params.nbytes == library.bytes()
            library.run(ctypes.c_void_p(params.ctypes.data), seed, ctypes.c_size_t(shared))

        return run_it

    return launcher


@pytest.fixture(scope="module", params=PLACES)
def place(request, emulated):
    """Opens a model, and makes its passes over a cache."""

    def opened(folder):
        model = load_model(folder, "bfloat16", request.param, compiled=False)
        return aligned(model) if request.param == "cpu" else model

    def passes(model, cache, seed=1):
        if request.param == "cuda":
            return resident.resident(model, cache)
        assert resident.unfit(model, BLOCKS, ROOM) == ""
        return resident.Resident(model, cache, partial(emulated, model, seed), BLOCKS)

    opened.passes, opened.device = passes, request.param
    return opened


class Pair:
    """A model's passes in one launch, and a reference in float32 that runs layer after layer."""

    def __init__(self, place, folder, cache=ContiguousCache, seed=1):
        self.model, reference = place(folder), load_model(folder, "float32", place.device, compiled=False)
        self.cache = cache(cache.Options(), self.model.info.layout, 4, LENGTH)
        exact = ContiguousCache(ContiguousCache.Options(), reference.info.layout, 4, LENGTH)
        self.runs, self.exact = ModelRunner(self.model, self.cache), ModelRunner(reference, exact)
        self.passes = place.passes(self.model, self.cache, seed)

    def open(self, *lengths):
        """Slots that hold tokens, written by turns, so that blocks of a paged cache scatter."""
        slots = [self.cache.open(())[0] for _ in lengths]
        assert slots == [self.exact.cache.open(())[0] for _ in lengths]
        for start in range(0, max(lengths), 50):
            for slot, length in zip(slots, lengths, strict=True):
                if part := some(length, slot)[start : min(start + 50, length)]:
                    for runner in (self.runs, self.exact):
                        assert runner.cache.reserve(slot, len(part))
                        runner.run([Work(slot, part, logits=())])
                        runner.cache.keep(slot, part, range(len(part)))
        return slots

    def run(self, works):
        for work in works:
            assert self.cache.reserve(work.slot, len(work.tokens))
        flat = flatten(works, self.cache)
        found = self.passes.run(flat)
        host.wait(self.model.info.layout.device)
        self.cache.advance(flat.segments)
        return found

    def close_to(self, works):
        """What a pass says, once it was found to be what the reference says."""
        found, expected = self.run(works), self.exact.run(works)
        logits = found.output.logits.clone()
        torch.testing.assert_close(logits, torch.cat([e.logits for e in expected]), atol=0.04, rtol=0.04)
        for layer, rows in found.output.hidden.items():
            other = torch.cat([e.hidden[layer] for e in expected])
            torch.testing.assert_close(rows.float(), other, atol=0.06, rtol=0.06)
        assert found.told[0].tolist() == logits.argmax(-1).tolist()
        assert found.told[1].tolist() == logits.amax(-1).tolist()
        mass = (logits - logits.amax(-1, keepdim=True)).double().exp().sum(-1)
        np.testing.assert_allclose(found.told[2], mass.cpu(), rtol=1e-5)
        np.testing.assert_array_equal(found.facts.cpu(), found.told)
        return found, logits


@pytest.mark.parametrize("cache", [ContiguousCache, PagedCache])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_in_one_launch_says_what_layers_say_and_a_row_has_the_bits_it_has_alone(place, folders, family, cache):
    pair = Pair(place, folders[family], cache, seed=len(family))
    first, second = pair.open(300, 61)
    tokens, parents = TREE
    works = [
        Work(second, some(3, 8), logits=(0, 2), hidden=(0, -1)),
        Work(first, tokens, parents, logits=tuple(range(len(tokens))), hidden=(0, -1)),
    ]
    found, logits = pair.close_to(works)
    assert set(found.output.hidden) == {0, -1}
    for node in (0, 3, 5):
        alone = pair.run([Work(first, (tokens[node],), logits=(0,))])
        assert torch.equal(alone.output.logits[0], logits[2 + node])
        pair.cache.keep(first, (tokens[node],), (0,))


def test_sixteen_rows_of_four_requests_and_some_layers(place, folders):
    pair = Pair(place, folders["llama"])
    slots = pair.open(17, 40, 5, 256)
    ask = {"hidden": (1,), "plan": LayerPlan((1,))}
    pair.close_to([Work(slot, some(4, slot), logits=(3,), **ask) for slot in slots])
    silent = LayerPlan((0,), logits=False)
    found = pair.run([Work(slots[0], (1, 2), logits=(1,), hidden=(0, -1), plan=silent)])
    assert found.output.logits.shape == (0, VOCAB)
    assert torch.equal(found.output.hidden[0], found.output.hidden[-1])


def test_what_does_not_fit_is_left_to_others(place, folders):
    pair = Pair(place, folders["llama"])
    (slot,) = pair.open(20)
    assert pair.cache.reserve(slot, 40)
    assert pair.passes.run(flatten([Work(slot, some(17), logits=())], pair.cache)) is None
    assert pair.passes.run(flatten([Work(slot, (1, 2), logits=(1, 1))], pair.cache)) is None
    assert pair.passes.run(flatten([Work(slot, some(16), logits=())], pair.cache)) is not None


def test_a_launch_that_failed_keeps_nobody_waiting(place, folders, monkeypatch):
    pair = Pair(place, folders["llama"])
    (slot,) = pair.open(20)
    works = [Work(slot, (1, 2), logits=(0, 1))]
    assert pair.cache.reserve(slot, 2)

    def refuses(_):
        raise launch.GpuError("no.")

    pair.passes.compile(resident.FEW)
    with monkeypatch.context() as patch:
        patch.setitem(pair.passes._launches, resident.FEW, refuses)
        with pytest.raises(launch.GpuError):
            pair.passes.run(flatten(works, pair.cache))
    pair.close_to(works)


def rig(place, model, drafter, monkeypatch):
    monkeypatch.setattr(Transformer, "resident", place.passes)
    monkeypatch.setattr(build, "Shaping", lambda *given: Shaping(*given[:3], resident=True))
    sizes = {"max_requests": 4, "max_step_tokens": 24, "context_length": 128, "draft_timeout": 300.0}
    return Toy(drafter=drafter, model=model).resized(passes="padded", device=place.device, **sizes).build()


ASKS = [Ask(some(5 + 9 * seed, seed), Sampling(temperature=0, max_tokens=9, seed=seed)) for seed in range(3)]


@pytest.mark.parametrize("drafter", ["draft-model:model={folder},depth=3", BushyDrafter])
def test_drafts_change_no_greedy_text(place, folders, monkeypatch, drafter):
    model = place(folders["llama"])
    name = drafter.format(folder=folders["qwen2"]) if isinstance(drafter, str) else drafter
    monkeypatch.setattr(build, "load_model", lambda folder, *_, **__: place(folder))
    plain, drafted = (rig(place, model, how, monkeypatch) for how in ("none", name))
    expected = [t.tokens for t in plain.write(ASKS)]
    assert plain.engine.runner.padded.resident._count > 5
    assert [t.tokens for t in drafted.write(ASKS)] == expected
    assert drafted.engine.stats.draft_failures == 0
    assert all(runner.padded.resident._count > 3 for runner in (drafted.engine.runner, *drafted.runners))


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("gemma2", {"head_dim": 32, "hidden_activation": "gelu_pytorch_tanh"}, "of another kind"),
        ("qwen3", {"head_dim": 32}, "of another kind"),
        ("llama", {"head_dim": 48}, "sizes are uneven"),
        ("llama", {"hidden_size": 4128, "head_dim": 32}, "more outputs than a block"),
    ],
)
def test_models_that_run_otherwise(tmp_path, family, changes, reason):
    config = transformers.AutoConfig.for_model(family, **SMALL | {"num_hidden_layers": 1} | changes)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_model(tmp_path, "bfloat16", "cpu", compiled=False)
    assert reason in resident.unfit(model, BLOCKS, ROOM)
    assert model.resident(ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, 8)) is None


def test_a_model_of_float32_runs_otherwise(folders):
    assert "bfloat16" in resident.unfit(load_model(folders["llama"], "float32", "cpu", compiled=False), BLOCKS, ROOM)


def test_a_gpu_with_little_shared_memory_runs_otherwise(folders):
    model = load_model(folders["llama"], "bfloat16", "cpu", compiled=False)
    assert "shared memory" in resident.unfit(model, BLOCKS, 48_000)


def test_a_leafs_own_nodes_are_the_last_of_its_path():
    assert leaves((-1, -1, 0, 0, 1, 3, 4), 0) == [([0, 2], [0, 2]), ([3, 5], [0, 3, 5]), ([1, 4, 6], [1, 4, 6])]
    assert leaves((-1, 0, 0, 1), 2) == [([2], [0, 2]), ([3], [0, 1, 3])]


def test_why_kernels_cannot_be_compiled_is_a_sentence():
    assert launch.why_not(torch.device("cpu")) == "there is no GPU."
