"""Packed folders: the bits of the model they were made of, or a sentence; scales lose no more than they have to."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from forerun.caches.contiguous import ContiguousCache
from forerun.cli import program
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError, ForerunError, ModelError
from forerun.kernels import native
from forerun.models.load import load_model
from forerun.models.packed import DTYPES
from forerun.quantize import Job, quantize
from forerun.types import Work
from forerun.weights import packed
from forerun.weights.packed import NAME, PackedFile, checksum_of

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
VOCAB = 96
FAMILIES = {
    "llama": {"head_dim": 64, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "gemma2": {"head_dim": 32, "sliding_window": 5, "num_key_value_heads": 1},
    "qwen3": {"head_dim": 32, "num_key_value_heads": 2},
    "gpt_neox": {"hidden_size": 64},
    "gpt2": {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 64},
}


def save(folder, family, **changes):
    small = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "max_position_embeddings": 64}
    own = FAMILIES[family] | changes
    config = transformers.AutoConfig.for_model(family, **({"vocab_size": VOCAB} if family == "gpt2" else small) | own)
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    for weight in theirs.parameters():
        weight.data = weight.data + torch.randn_like(weight) * 0.2
    theirs.to(torch.bfloat16).save_pretrained(folder)
    return folder


def logits(model, tokens=range(40)):
    runner = ModelRunner(model, ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, 64))
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, len(tokens))
    return runner.run([Work(slot, tuple(tokens), logits=tuple(range(len(tokens))))])[0].logits


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models") / "llama", "llama")


@pytest.fixture
def folder(llama, tmp_path):
    """A packed folder that a test may break."""
    quantize(str(llama), tmp_path / "packed", Job("int8"))
    return tmp_path / "packed"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_folder_gives_the_bits_of_its_model(tmp_path, family):
    stored = save(tmp_path / "stored", family)
    for dtype in DTYPES:
        out = tmp_path / dtype
        found = quantize(str(stored), out, Job(dtype))
        model, plain = load_model(out), load_model(stored, dtype)
        assert torch.equal(logits(model), logits(plain))
        assert model.info.weight_bytes == plain.info.weight_bytes <= found["bytes"]
        assert (model.info.layout, model.info.rounded) == (plain.info.layout, plain.info.rounded)
        assert torch.equal(logits(load_model(out, dtype, threads=2)), logits(plain))
    assert not torch.equal(logits(load_model(tmp_path / "int8")), logits(load_model(tmp_path / "int4")))


def test_a_folder_keeps_its_other_files_and_its_drafter(llama, tmp_path):
    source, out = tmp_path / "a" / "model", tmp_path / "b" / "deep" / "packed"
    source.parent.mkdir()
    save(source, "llama")
    (source / "forerun.json").write_text('{"drafter": "../small", "note": 1}')
    (source / "tokenizer.json").write_text("{}")
    (source / "pytorch_model.bin").write_text("code")
    quantize(str(source), out, Job("int4"))
    assert {f.name for f in out.iterdir()} == {
        NAME,
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "forerun.json",
    }
    assert json.loads((out / "forerun.json").read_text()) == {"drafter": "../../../a/small", "note": 1}
    assert load_model(out).info.companion == load_model(source).info.companion
    assert load_model(out).info.eos == load_model(source).info.eos


def begin_of(path):
    return list(packed.BEGIN.unpack(path.read_bytes()[: packed.BEGIN.size]))


def rewrite(path, change):
    """Change the table as another build would have written it, checksum included."""
    content = path.read_bytes()
    mark, version, at, size, _ = packed.BEGIN.unpack(content[: packed.BEGIN.size])
    facts = json.loads(content[at : at + size])
    change(facts)
    table = json.dumps(facts).encode()
    begin = packed.BEGIN.pack(mark, version, at, len(table), int(checksum_of(table), 16))
    path.write_bytes(begin + content[len(begin) : at] + table)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def shrink_shape(facts):
    next(p for p in facts["pieces"] if p["name"] == "layers.0.up")["shape"][0] -= 32


DAMAGE = {
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-1]), r"has \d+ bytes and should have \d+; copy it again"),
    "longer": (lambda p: p.write_bytes(p.read_bytes() + b"x"), r"has \d+ bytes and should have \d+; copy it again"),
    "empty": (lambda p: p.write_bytes(b""), "is not a file of packed weights; copy it again"),
    "foreign": (lambda p: flip(p, 0), "is not a file of packed weights"),
    "version": (lambda p: flip(p, 8), "has format version 0, and this forerun reads version 1; make it again"),
    "table": (lambda p: flip(p, begin_of(p)[2] + 20), "the bytes of its table are not those that were written"),
    "layout": (lambda p: rewrite(p, lambda f: f.update(layout=99)), "in layout 99 of 'int8', and this build reads"),
    "dtype": (lambda p: rewrite(p, lambda f: f.update(dtype="int3")), "of 'int3', and this build reads"),
    "missing": (lambda p: rewrite(p, lambda f: f["pieces"].pop(0)), "layers.0.qkv is missing and should be int8"),
    "shape": (lambda p: rewrite(p, shrink_shape), r"layers.0.up is int8 \[128, 48\] in .* and should be int8 \[160"),
    "checks": (lambda p: rewrite(p, lambda f: f["pieces"][0]["checks"].clear()), "layers.0.qkv is int8"),
    "no pieces": (lambda p: rewrite(p, lambda f: f.pop("pieces")), "cannot be read .*pieces"),
    "odd piece": (lambda p: rewrite(p, lambda f: f["pieces"][0].update(color=1)), "cannot be read .*color"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_a_sentence(folder, what):
    damage, sentence = DAMAGE[what]
    load_model(folder)
    damage(folder / NAME)
    with pytest.raises(ModelError, match=sentence):
        load_model(folder)


def test_a_changed_bit_of_any_piece_is_seen(folder):
    path = folder / NAME
    pieces = PackedFile(path).pieces.values()
    assert {p.name.partition(".")[0] for p in pieces} == {"layers", "ends"}
    for piece in pieces:
        for at in (piece.offset, piece.offset + piece.nbytes - 1):
            flip(path, at)
            with pytest.raises(ModelError, match=rf"the bytes of {piece.name} are not those that were written; copy"):
                load_model(folder)
            flip(path, at)
    load_model(folder)


def test_rows_of_tokens_are_checked_too(tmp_path):
    quantize(str(save(tmp_path / "stored", "qwen2")), tmp_path / "packed", Job("bf16"))
    path = tmp_path / "packed" / NAME
    flip(path, PackedFile(path).pieces["ends.embed"].offset + 5)
    with pytest.raises(ModelError, match=r"the bytes of ends\.embed are not"):
        load_model(tmp_path / "packed")


def test_a_piece_of_several_blocks_is_read_whole(monkeypatch, tmp_path, llama):
    monkeypatch.setattr(packed, "BLOCK", 1000)
    quantize(str(llama), tmp_path / "blocks", Job("int8"))
    assert max(len(p.checks) for p in PackedFile(tmp_path / "blocks" / NAME).pieces.values()) > 5
    assert torch.equal(logits(load_model(tmp_path / "blocks")), logits(load_model(llama, "int8")))


def test_another_config_than_the_one_it_was_made_with_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=7))  # laid out in another way: the same
    load_model(folder)
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    with pytest.raises(ModelError, match=r"made with another config\.json .*; put that one back"):
        load_model(folder)


def test_another_precision_than_the_folders_is_refused(folder, llama):
    with pytest.raises(ConfigError, match=r"'int4' was asked for and .* is packed as int8; use dtype='auto', or make"):
        load_model(folder, "int4")
    assert torch.equal(logits(load_model(folder, "fastest")), logits(load_model(llama, "w8a8")))
    assert not torch.equal(logits(load_model(folder)), logits(load_model(folder, "w8a8")))


def test_a_gpu_is_refused(folder):
    with pytest.raises(
        ConfigError, match=r"packed for compiled passes, .* and device 'cuda' was asked for; use device"
    ):
        load_model(folder, device="cuda")


def test_the_command_says_what_it_wrote(llama, tmp_path):
    out = tmp_path / "packed"
    result = CliRunner().invoke(program, ["quantize", str(llama), str(out), "--dtype", "int4", "--scales", "mse"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["bytes"] == sum(piece.nbytes for piece in PackedFile(out / NAME).pieces.values())
    assert {**report, "bytes": 0} == {"folder": str(out), "dtype": "int4", "scales": "mse", "bytes": 0}
    assert PackedFile(out / NAME).facts["scales"] == "mse"
    assert not torch.equal(logits(load_model(out)), logits(load_model(llama, "int4")))


def test_without_compiled_passes_there_is_a_sentence(folder, llama, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)
    with pytest.raises(ConfigError, match=r"which only compiled passes run .*; load the model that it was made of"):
        load_model(folder)
    with pytest.raises(ConfigError, match=r"cannot be packed: 'llama' has no compiled passes here"):
        quantize(str(llama), tmp_path / "other", Job())


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (Job("int3"), "--dtype is 'int3'; use one of: int8, int4, bf16"),
        (Job("int8", "best"), "--scales is 'best'; use one of: nearest, mse"),
        (Job("bf16", "mse"), "bf16 has no scales to choose; leave"),
    ],
)
def test_what_cannot_be_made_is_refused(llama, tmp_path, job, sentence):
    with pytest.raises(ConfigError, match=sentence):
        quantize(str(llama), tmp_path / "out", job)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_nothing_packed_twice(llama, folder, tmp_path):
    with pytest.raises(ConfigError, match="exists; name a folder that does not"):
        quantize(str(llama), folder, Job())
    with pytest.raises(ConfigError, match="is packed already; quantize the model that it was made of"):
        quantize(str(folder), tmp_path / "again", Job())


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["fsync", "rename"])
def test_a_full_disk_leaves_nothing(llama, tmp_path, monkeypatch, place):
    owner = Path if place == "rename" else packed.os
    monkeypatch.setattr(owner, place, full)
    with pytest.raises(ForerunError, match=r"^cannot write '.*out' \(No space left on device\); make room"):
        quantize(str(llama), tmp_path / "out", Job())
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def pack(weights, kind, scales=0):
    module = native.load()
    made = module.Packed(module.Arena(), kind, *weights.shape)
    made.fill(weights.ctypes.data, 0, np.arange(len(weights)), scales)
    return made


def unpack(made):
    back = np.empty((made.outputs, made.inputs), np.float32)
    for row in range(made.outputs):
        made.row(row, back[row : row + 1].ctypes.data)
    return back


def heavy_tailed(outputs, inputs):
    rng = np.random.default_rng(0)
    return (rng.standard_t(4, (outputs, inputs)) * rng.uniform(0.1, 3, (outputs, 1))).astype(np.float32)


@pytest.mark.parametrize(("kind", "gain"), [(3, 0.99), (4, 0.995)])
def test_scales_by_least_squares_lose_less(kind, gain):
    weights = heavy_tailed(64, 4096)
    near, best = (((unpack(pack(weights, kind, scales)) - weights) ** 2).sum(1) for scales in (0, 1))
    assert (best <= near * (1 + 1e-5)).all()
    assert best.sum() < gain * near.sum()


def test_int8_is_the_textbooks_to_the_bit():
    weights = heavy_tailed(37, 333)
    top = np.abs(weights).max(1, keepdims=True)
    codes = np.rint(weights * (np.float32(127) / top)).astype(np.float32)
    np.testing.assert_array_equal(unpack(pack(weights, 3)), codes * (top / np.float32(127)))


@pytest.mark.parametrize("kind", [2, 3, 4])
@pytest.mark.parametrize("inputs", [31, 100, 1024])
def test_threads_and_chunks_pack_the_same(kind, inputs):
    module, rows = native.load(), (1 << 20) // inputs + 1  # enough for several threads
    weights = torch.from_numpy(heavy_tailed(rows, inputs)).bfloat16()
    one, many = (module.Packed(module.Arena(), kind, rows, inputs) for _ in range(2))
    many.fill(weights.data_ptr(), 2, np.arange(rows))
    for first in range(0, rows, 50):
        part = np.arange(first, min(first + 50, rows))
        one.fill(weights[first:].data_ptr(), 2, part)
    for a, b in zip(one.spans(), many.spans(), strict=True):
        assert a[1] == b[1]
        assert not a[1] or bytes(packed.memory(*a)) == bytes(packed.memory(*b))


@pytest.mark.parametrize("kind", [3, 4])
def test_given_codes_are_kept(kind):
    module, rng = native.load(), np.random.default_rng(0)
    low, high = (-127, 128) if kind == 3 else (-8, 8)
    wholes = rng.integers(low, high, (40, 100)).astype(np.int8)
    multipliers = rng.choice([-15, -3, 1, 7], (40, 4 if kind == 4 else 0)).astype(np.int8)
    scales, to = rng.uniform(0.1, 1, 40).astype(np.float32), rng.permutation(40)
    made = module.Packed(module.Arena(), kind, 40, 100)
    made.codes(wholes, multipliers, scales, to)
    times = np.repeat(multipliers, 32, axis=1)[:, :100] if kind == 4 else 1
    np.testing.assert_array_equal(unpack(made)[to], (wholes * times).astype(np.float32) * scales[:, None])
    with pytest.raises(ValueError, match="are not those of the rows"):
        made.codes(wholes[:1], multipliers, scales, to)


def test_codes_belong_into_whole_numbers():
    module, none = native.load(), np.empty((1, 0), np.int8)
    with pytest.raises(ValueError, match="belong into a matrix of INT8 or INT4"):
        module.Packed(module.Arena(), 2, 1, 4).codes(
            np.ones((1, 4), np.int8), none, np.ones(1, np.float32), np.arange(1)
        )


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b"", "ef46db3751d8e999"),
        (b"abc", "44bc2cf5ad770999"),
        (b"Call me Ishmael. Some years ago--never mind how long precisely-", "02a2e85470d6fd96"),
    ],
)
def test_the_checksum_is_xxh64(content, known):
    assert checksum_of(content) == known
