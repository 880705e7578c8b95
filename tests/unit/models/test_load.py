"""Folders that cannot be used are refused in one sentence with a remedy, and good ones load without waste."""

import json
import pickle
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack
from forerun.errors import ConfigError, ModelError
from forerun.models.load import load_model
from forerun.types import Work

CPU = torch.device("cpu")
LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


def logits(model):
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, 32)
    slot, _ = cache.open(())
    return model.forward(pack([Work(slot, (3, 1, 4, 1, 5), logits=(0, 1, 2, 3, 4))], cache, CPU), cache).logits


def change_config(folder, **changes):
    file = folder / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v != "gone"}))


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({k: v.clone() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def refused(folder, pattern):
    with pytest.raises(ModelError, match=pattern) as caught:
        load_model(folder)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_folder_no_config_no_weights(tmp_path, folder):
    refused(tmp_path / "nowhere", "no model folder .* reference")
    refused(tmp_path, "has no config.json")
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights; put model.safetensors")


def test_pickles_are_refused_and_not_opened(folder):
    (folder / "model.safetensors").unlink()
    canary = folder / "canary"

    class Bomb:
        def __reduce__(self):
            return (open, (str(canary), "w"))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    refused(folder, "safetensors only.*save_pretrained")
    assert not canary.exists()


def test_every_wrong_tensor_is_named(folder):
    def spoil(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(32, 31)
        tensors["model.layers.0.extra.weight"] = torch.zeros(1)

    change_weights(folder, spoil)
    sentence = refused(folder, "do not fit its config.json")
    for part in (
        "missing model.layers.1.mlp.up_proj.weight",
        "missing model.norm.weight",
        "q_proj.weight is [32, 31] and should be [32, 32]",
        "unexpected model.layers.0.extra.weight",
    ):
        assert part in sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 0},
        {"hidden_size": -1},
        {"hidden_size": 10**12},
        {"hidden_size": "32"},
        {"hidden_size": True},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 5},
        {"num_key_value_heads": 3},
        {"vocab_size": None},
        {"vocab_size": 63},
        {"rms_norm_eps": float("nan")},
        {"hidden_act": "sin"},
        {"rope_parameters": {"rope_theta": float("inf")}},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}},
        {"rope_parameters": [1]},
        {"attention_bias": "yes"},
        {"eos_token_id": "</s>"},
        {"model_type": ["llama"]},
        {"model_type": "t5"},
        {"model_type": "gone"},
    ],
)
def test_hostile_config(folder, changes):
    change_config(folder, **changes)
    (folder / "generation_config.json").unlink(missing_ok=True)
    refused(folder, "config.json|transformers cannot load|eos_token_id")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": "\udcff"}'])
def test_config_that_is_no_json_object(folder, text):
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(folder, "config.json")


def test_hostile_safetensors(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + size]
    hostile = [
        b"",
        whole[:4],
        whole[: 8 + size // 2],
        whole[:-10],
        (2**63).to_bytes(8, "little") + whole[8:],
        (10**11).to_bytes(8, "little") + whole[8:],
        whole[:8] + header.replace(b"data_offsets", b"data_offsetz") + whole[8 + size :],
        whole[:8] + re.sub(rb"\[64,32\]", b"[64,33]", header, count=1) + whole[8 + size :],
        whole[:8] + header.replace(b'"F32"', b'"F16"', 1) + whole[8 + size :],
        whole[:8] + b"x" * size + whole[8 + size :],
    ]
    for content in hostile:
        assert content != whole
        file.write_bytes(content)
        refused(folder, "not a sound safetensors file")


def test_an_unknown_precision_is_refused(folder):
    change_weights(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.int64)}))
    refused(folder, "stored as I64; convert")


def shard(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_shards_equal_one_file(good, folder):
    shard(folder)
    assert torch.equal(logits(load_model(folder)), logits(load_model(good)))


def test_a_lying_index(folder):
    index = shard(folder)
    file = folder / "model.safetensors.index.json"
    name = "model.norm.weight"
    for place in ("../a.safetensors", "/etc/passwd", "sub/a.safetensors", "a.bin", 7):
        file.write_text(json.dumps({"weight_map": index["weight_map"] | {name: place}}))
        refused(folder, "only .safetensors files in the same folder")
    file.write_text(json.dumps({"weight_map": index["weight_map"] | {name: "c.safetensors"}}))
    refused(folder, "lacks the shards c.safetensors")
    file.write_text(json.dumps({"weight_map": index["weight_map"] | {"ghost": "a.safetensors"}}))
    refused(folder, "lacks ghost")
    file.write_text(json.dumps({"weights": 1}))
    refused(folder, "weight_map")


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_widened_exactly(good, folder, stored):
    def narrow(tensors):
        for name in tensors:
            tensors[name] = tensors[name].to(stored)

    change_weights(folder, narrow)
    model = load_model(folder)
    assert model.info.layout.dtype == torch.float32
    change_weights(folder, lambda tensors: tensors.update({k: v.float() for k, v in tensors.items()}))
    torch.testing.assert_close(logits(model), logits(load_model(folder)), atol=2e-6, rtol=2e-6)
    assert (logits(model) - logits(load_model(good))).abs().max() > 1e-5 or stored == torch.float64


def test_dtype_can_be_asked_for(folder):
    wide = logits(load_model(folder, "float64"))
    assert wide.dtype == torch.float64
    torch.testing.assert_close(logits(load_model(folder)), wide.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(load_model(folder, "bfloat16")).double(), wide, atol=0.05, rtol=0.05)
    with pytest.raises(ConfigError, match=r"auto, fastest, int8, int4, w8a8 \(on a CPU\), bf16, bfloat16"):
        load_model(folder, "int3")


def test_facts_of_a_folder(folder):
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "forerun.json").write_text('{"drafter": "../drafter"}')
    change_config(folder, eos_token_id=5)
    info = load_model(folder).info
    assert info.eos == (5,)
    assert info.companion == str(folder.parent / "drafter")
    assert (info.vocab_size, info.context_length, info.hidden_size, info.num_layers) == (64, 64, 32, 2)
    assert info.weight_bytes == 4 * (64 * 32 + 2 * (64 * 32 + 32 * 32 + 3 * 32 * 48))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert load_model(folder).info.eos == (1, 2)
    (folder / "forerun.json").write_text('{"drafter": 3}')
    refused(folder, "'drafter' is 3")


def test_code_in_a_folder_is_never_run(folder):
    canary = folder / "canary"
    (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
    change_config(folder, auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}, trust_remote_code=True)
    load_model(folder)
    change_config(folder, model_type="evil")
    refused(folder, "transformers cannot load")
    assert not canary.exists()


def test_the_text_part_of_a_gemma3_with_a_vision_tower(tmp_path):
    text = LLAMA | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(1)
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([[3, 1, 4, 1, 5]])).logits[0]
    torch.testing.assert_close(logits(load_model(tmp_path)), expected, atol=1e-4, rtol=1e-4)


def test_keys_and_values_are_kept_as_asked(folder):
    for name, kept in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("int8", torch.int8)):
        assert load_model(folder, kv_dtype=name).info.layout.stored == kept
    assert load_model(folder).info.layout.stored == torch.float32


@pytest.mark.parametrize(
    ("name", "device", "kv_dtype", "sentence"),
    [
        ("toy:0", "cpu", "int8", "kv_dtype 'int8' cannot run toy:0: a toy model keeps tokens in its cache; use kv"),
        ("reference", "cuda", "bf16", "device 'cuda' keeps its own precision in its cache; use kv_dtype='auto'"),
        ("reference", "cpu", "int7", "did you mean 'int8'"),
    ],
)
def test_keys_and_values_that_cannot_be_kept_so_are_refused(name, device, kv_dtype, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_model(name, device=device, kv_dtype=kv_dtype)
