"""R24: fifteen hundred files that are not what they say: a ModelError in time, or a model that runs."""

import json
import random
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack
from forerun.errors import ModelError
from forerun.models.load import load_model
from forerun.models.tokenizer import Tokenizer
from forerun.types import Work

SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {**SHAPE, "vocab_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0}
SECONDS = 2.0  # of the processor, for one file
MEMORY = 256 * 2**20
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).save_pretrained(folder)
    vocab = {piece: i for i, piece in enumerate([*"abcdefghijklm ", "ab", "abc", "cd"])}
    fast = Fast(models.BPE(vocab, [("a", "b"), ("ab", "c"), ("c", "d")]))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast.add_special_tokens(["<s>", "</s>"])
    fast.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


def peak():
    """Bytes of the most memory that this process ever had."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def runs(folder):
    model = load_model(folder)
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, 8)
    slot, _ = cache.open(())
    model.forward(pack([Work(slot, (0, 1), logits=(1,))], cache, CPU), cache)


def speaks(folder):
    made = Tokenizer.from_folder(folder)
    made.decode(made.encode("abc cd"))
    made.pieces()


def survived(folder, files, attempt):
    """How many of the files were refused, and how many could be used; anything but a ModelError raises here."""
    counts, before, sentences = {"refused": 0, "used": 0}, peak(), []
    names = sorted(folder.iterdir())
    for write in files:
        write()
        began = time.process_time()
        try:
            attempt(folder)
            counts["used"] += 1
        except ModelError as problem:
            counts["refused"] += 1
            sentences.append(str(problem))
        assert time.process_time() - began < SECONDS
    assert [sentence for sentence in sentences if not sentence.endswith(".")] == []
    assert sorted(folder.iterdir()) == names
    assert peak() - before < MEMORY
    return counts


# safetensors


def parts(whole):
    size = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + size]), whole[8 + size :]


def joined(header, data, size=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if size is None else size) + raw + data


def tensor(header, rng):
    return header[rng.choice([name for name in header if name != "__metadata__"])]


def truncated(whole, rng):
    return whole[: rng.randrange(len(whole))]


def flipped(whole, rng):
    raw = bytearray(whole)
    for _ in range(rng.randrange(1, 9)):
        raw[rng.randrange(len(raw) if rng.random() < 0.3 else 1500)] ^= 1 << rng.randrange(8)
    return bytes(raw)


def lying_size(whole, rng):
    header, data = parts(whole)
    return joined(header, data, rng.choice([0, 1, 7, 2**31, 2**32, 2**63, 2**64 - 1, rng.randrange(10_000)]))


def overlapping(whole, rng):
    header, data = parts(whole)
    one, other = tensor(header, rng), tensor(header, rng)
    one["data_offsets"] = [rng.choice(other["data_offsets"]), rng.choice([0, 4, *other["data_offsets"], len(data)])]
    return joined(header, data)


def bloated(whole, rng):
    header, data = parts(whole)
    header["__metadata__"] = {"x": "y" * rng.randrange(10**6)} if rng.random() < 0.5 else {"x": rng.choice([1, [], {}])}
    return joined(json.dumps(header).encode() + b" " * rng.randrange(10**5), data)


def overflowing(whole, rng):
    header, data = parts(whole)
    shapes = [[2**32, 2**32], [2**63, 2], [2**64 + 16], [-16, -16], [2**31, 2**33, 16], [0, 2**62], [1.5], ["16"], []]
    tensor(header, rng)["shape"] = rng.choice(shapes)
    return joined(header, data)


def disagreeing(whole, rng):
    header, data = parts(whole)
    one = tensor(header, rng)
    name = rng.choice(["dtype", "shape", "data_offsets"])
    values = {
        "dtype": ["F16", "F64", "I64", "U8", "F8_E4M3", "NONE", 7, None],
        "shape": [[16], [16, 17], [1, 16, 16], None, {}, [16] * 200],
        "data_offsets": [[0, 0], [4, 0], [-4, 0], [0], [0, 4, 8], [0, 2**63], None, ["0", "4"]],
    }
    one[name] = rng.choice(values[name])
    if rng.random() < 0.2:
        del one[name]
    return joined(header, data)


def misnamed(whole, rng):
    header, data = parts(whole)
    raw = json.dumps(header)
    name = rng.choice([name for name in header if name != "__metadata__"])
    other = rng.choice(["../../x", "a\\u0000b", "/etc/passwd", "", "\\ud800", next(iter(header)), "x" * 70_000])
    trailing = rng.choice([b"", b"more", bytes(4096)])
    return joined(raw.replace(json.dumps(name), f'"{other}"', 1).encode(), data + trailing)


KINDS = [truncated, flipped, lying_size, overlapping, bloated, overflowing, disagreeing, misnamed]


@pytest.mark.parametrize("kind", KINDS)
def test_weights(kind, folder):
    """125 of every kind."""
    file, rng = folder / "model.safetensors", random.Random(kind.__name__)  # noqa: S311 - a plan, not a secret
    whole = file.read_bytes()
    counts = survived(folder, [lambda: file.write_bytes(kind(whole, rng))] * 125, runs)
    assert counts["refused"] > 20


def test_weights_of_a_terabyte_that_are_not_there(folder):
    """A sparse file, whose header is right and whose end is far."""
    file = folder / "model.safetensors"
    try:
        with file.open("r+b") as stream:
            stream.truncate(2**40)
    except OSError:
        pytest.skip("this file system has no sparse files")
    assert survived(folder, [lambda: None], runs) == {"refused": 1, "used": 0}


# JSON

HOSTILE = [0, -1, 1, 2**31, 2**63, 10**12, 1e308, -0.5, True, None, "", "x", "../x", "\x00", "a" * 10_000]
HOSTILE += [[], {}, [1], [[]], {"type": "x"}, [None] * 3, "NaN"]


def places(value, path=()):
    """Every path in a JSON value."""
    for key, held in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(held, dict | list):
            yield from places(held, (*path, key))


def mutated(text, rng):
    """One to three places changed, or the text itself."""
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        return rng.choice(
            [text[:at], text[:at] + "\x00" + text[at:], "[" * 100_000, text + text, f"[{text}]", "\ufeff" + text]
        )
    value = json.loads(text)
    for _ in range(rng.randrange(1, 4)):
        *path, last = rng.choice(list(places(value)))
        inside = value
        for key in path:
            inside = inside[key]
        if rng.random() < 0.2:
            del inside[last]
        else:
            inside[last] = json.loads(json.dumps(rng.choice(HOSTILE)))
    return json.dumps(value).replace('"NaN"', "NaN")


def test_configs(folder):
    rng = random.Random(0)  # noqa: S311 - a plan, not a secret
    (folder / "generation_config.json").unlink()
    file = folder / "config.json"
    text = file.read_text()
    counts = survived(folder, [lambda: file.write_text(mutated(text, rng))] * 300, runs)
    assert counts["refused"] > 60


def test_tokenizers(folder):
    rng = random.Random(1)  # noqa: S311 - a plan, not a secret
    file = folder / "tokenizer.json"
    text = json.dumps(json.loads(file.read_text()), sort_keys=True)
    counts = survived(folder, [lambda: file.write_text(mutated(text, rng))] * 200, speaks)
    assert counts["refused"] > 40


def test_indices(folder):
    rng, whole = random.Random(2), folder / "model.safetensors"  # noqa: S311 - a plan, not a secret
    header, _ = parts(whole.read_bytes())
    whole.rename(folder / "a.safetensors")
    index, names = folder / "model.safetensors.index.json", sorted(header.keys() - {"__metadata__"})
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "a.safetensors")})
    index.write_text(text)
    runs(folder)
    counts = survived(folder, [lambda: index.write_text(mutated(text, rng))] * 50, runs)
    assert counts["refused"] > 10


def test_a_token_with_an_id_that_no_list_can_hold(folder):
    file = folder / "tokenizer.json"
    value = json.loads(file.read_text())
    value["model"]["vocab"]["a"] = 2**31
    file.write_text(json.dumps(value))
    with pytest.raises(ModelError, match="a token with the id 2147483648, and ids go to 16777215"):
        speaks(folder)
