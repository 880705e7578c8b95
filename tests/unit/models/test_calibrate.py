"""Calibrated whole numbers lose less of a matrix' outputs, and never more on the text that they were made for."""

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from forerun.errors import ConfigError
from forerun.kernels import native
from forerun.layers.linear import linear
from forerun.models import calibrate
from forerun.models.calibrate import Calibration, factor, in_order, loss, windows
from forerun.models.families.llama import adapt
from forerun.models.load import load_model
from forerun.models.native import rotated
from forerun.models.recipe import Settings
from forerun.quantize import Job, quantize
from forerun.weights.packed import NAME, PackedFile

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
KINDS = [3, 4]
TEXT = "the cat sat on the mat and the dog sat on the cat; " * 40


def save(path, **changes):
    """A random Llama whose embeddings are few directions, as those of trained models are, with a byte tokenizer."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=300, **sizes, max_position_embeddings=128, initializer_range=0.3, **changes)
    )
    model.model.embed_tokens.weight.data = torch.randn(300, 6) @ torch.randn(6, 64)
    model.save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save(tmp_path_factory.mktemp("calibrate") / "llama")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "cats.txt"
    path.write_text(TEXT)
    return path


def correlated(inputs, rows=400):
    """The second moment of inputs that mostly lie in a few directions."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 12, generator=generator) @ torch.randn(12, inputs, generator=generator)
    x += 0.3 * torch.randn(rows, inputs, generator=generator)
    return x.t() @ x


def packed(weight, kind, scales):
    module = native.load()
    made = module.Packed(module.Arena(), kind, *weight.shape)
    made.fill(weight.data_ptr(), 0, np.arange(len(weight)), scales)
    return made


def unpacked(made):
    back = torch.empty(made.outputs, made.inputs)
    for row in range(made.outputs):
        made.row(row, back[row].data_ptr())
    return back


def weights(outputs, inputs):
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))


def calibration(moment):
    """One that knows the moment of a matrix named 'it'."""
    values = {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 9,
    }
    made = Calibration(adapt(Settings(values, "x")), None, (), None)
    made._keys, made._moments = {"it": (0, "qkv")}, {(0, "qkv"): moment}
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [40, 300])
def test_outputs_lose_less_and_none_loses_more(kind, inputs):
    weight, moment = weights(50, inputs), correlated(inputs)
    made = packed(rotated(weight), kind, 1)
    before = loss(unpacked(made) - rotated(weight), moment)
    calibration(moment).improve("it", made, weight, np.arange(50))
    after = loss(unpacked(made) - rotated(weight), moment)
    assert (after <= before * 1.001).all()
    assert after.sum() < 0.7 * before.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_would_lose_more_stay_as_they_are(kind, monkeypatch):
    weight, moment = weights(50, 100), correlated(100)
    made = packed(rotated(weight), kind, 1)
    before = unpacked(made)
    worse = in_order(torch.zeros_like(weight), moment, torch.ones(50), four=kind == 4)
    monkeypatch.setattr(calibrate, "in_order", lambda *_, **__: worse)
    calibration(moment).improve("it", made, weight, np.arange(50))
    assert torch.equal(unpacked(made), before)
    calibration(moment).improve("another", made, weight, np.arange(50))
    assert torch.equal(unpacked(made), before)


def test_inputs_that_have_nothing_in_common_are_rounded_one_by_one():
    weight, scales = weights(20, 200), torch.full((20,), 0.02)
    found = in_order(weight, torch.eye(200), scales, four=False)
    assert torch.equal(found.wholes, (weight / scales[:, None]).round().clamp(-127, 127).to(torch.int8))
    assert found.multipliers.shape[1] == 0


@pytest.mark.parametrize("four", [False, True])
def test_the_size_of_blocks_changes_nothing_but_the_last_bits(four, monkeypatch):
    weight, moment, scales = weights(50, 300), correlated(300), torch.full((50,), 0.002 if four else 0.025)
    losses = []
    for block in (32, 1024):
        monkeypatch.setattr(calibrate, "BLOCK", block)
        found = in_order(weight, moment, scales, four=four)
        losses.append(float(loss(found.values(scales) - weight, moment).sum()))
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_the_factor_is_that_of_the_inverse():
    moment = correlated(30)
    moment[4] = moment[:, 4] = 0  # an input that is never there
    upper = factor(moment).double()
    damped = moment.double()
    damped[4, 4] = 1
    damped += 0.01 * damped.diagonal().mean() * torch.eye(30)
    torch.testing.assert_close(upper.t() @ upper @ damped, torch.eye(30).double(), atol=1e-3, rtol=0)


def rows_of(folder):
    file = PackedFile(folder / NAME)
    return {name: bytes(file.view(name)) for name in file.pieces}


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_matrix_is_calibrated(llama, text, tmp_path, dtype, tied, monkeypatch):
    if tied:
        llama = save(tmp_path / "tied", tie_word_embeddings=True)
    for name, calibrated in (("mse", ()), ("gptq", (text,))):
        quantize(str(llama), tmp_path / name, Job(dtype, "mse", calibrated))
    plain, found = rows_of(tmp_path / "mse"), rows_of(tmp_path / "gptq")
    places = [f"layers.{i}.{part}" for i in range(2) for part in ("qkv", "o", "up", "down")]
    assert {name for name in plain if plain[name] != found[name]} == {*places, "ends.head"}
    monkeypatch.setattr(calibrate, "ROOM", 1)  # a layer at a time
    quantize(str(llama), tmp_path / "small", Job(dtype, "mse", (text,)))
    assert rows_of(tmp_path / "small") == found
    load_model(tmp_path / "gptq")


def test_moments_are_those_of_the_inputs():
    recorder, x = calibrate.Recorder(linear(weights(8, 5))), weights(7, 5)
    out = recorder(x[:3])
    torch.testing.assert_close(recorder.onto(x[3:], torch.ones(4, 8)), recorder.inner(x[3:]) + 1)
    torch.testing.assert_close(out, recorder.inner(x[:3]))
    torch.testing.assert_close(recorder.moment, x.t() @ x)


def test_texts_are_cut_into_windows(llama, text, tmp_path):
    found = list(windows(llama, [text, text], 100))
    assert {len(w) for w in found[:-1]} <= {100, len(TEXT) % 100}
    assert sum(map(len, found)) == 2 * len(TEXT)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ConfigError, match="is empty; name a text like those"):
        list(windows(llama, [tmp_path / "empty.txt"], 100))
    with pytest.raises(ConfigError, match=r"cannot read .*none\.txt' .*; name a text in UTF-8"):
        list(windows(llama, [tmp_path / "none.txt"], 100))
