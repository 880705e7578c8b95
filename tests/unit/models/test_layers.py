"""Building blocks against their formulas, and the promises that linear maps make about bits."""

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from forerun.layers import rope
from forerun.layers.attention import bias
from forerun.layers.linear import DenseLinear, HalfLinear, PackedLinear, as_half, has_half, has_packed, linear
from forerun.layers.norm import LayerNorm, RmsNorm
from forerun.models.recipe import Settings, rope_of
from forerun.types import Segment

CPU = torch.device("cpu")


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bfloat(*shape):
    weight = randn(*shape).mul_(0.02)
    weight.view(-1)[:3] = torch.tensor([3e-8, -1.7e-7, 2.5])  # below and above what float16 does without scaling
    return weight.bfloat16().float()


SOURCES = {"float32": randn(640, 321), "float16": randn(640, 321).half().float(), "bfloat16": bfloat(640, 321)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("biased", [False, True])
def test_every_form_is_the_same_map(source, biased):
    weight, offset = SOURCES[source], randn(640, seed=1) if biased else None
    x, residual = randn(9, 321, seed=2), randn(9, 640, seed=3)
    wide = x.double() @ weight.double().t() + (offset.double() if biased else 0)
    for form in (DenseLinear(weight, offset), linear(weight, offset)):
        torch.testing.assert_close(form(x).double(), wide, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(form.onto(x, residual).double(), wide + residual, atol=2e-5, rtol=1e-5)
    assert form.numel == 640 * 321


@pytest.mark.skipif(not (has_half() and has_packed()), reason="needs FBGEMM and oneDNN in torch")
def test_which_form_is_chosen():
    assert isinstance(linear(SOURCES["float16"]), HalfLinear)
    assert isinstance(linear(SOURCES["bfloat16"]), HalfLinear)
    assert isinstance(linear(SOURCES["float32"]), PackedLinear)
    assert isinstance(linear(randn(20, 30)), DenseLinear)
    assert isinstance(linear(SOURCES["float16"].double()), DenseLinear)
    assert linear(SOURCES["bfloat16"]).nbytes * 2 == linear(SOURCES["float32"]).nbytes == 640 * 321 * 4


def test_half_holds_the_very_weights_or_is_not_used():
    for source in ("float16", "bfloat16"):
        half, scale = as_half(SOURCES[source])
        assert torch.equal(half.float() * scale, SOURCES[source])
    assert not torch.equal(SOURCES["bfloat16"].half().float(), SOURCES["bfloat16"])  # so scaling was needed
    spoiled = SOURCES["bfloat16"].clone()
    spoiled[-1, -1] = 1e-20
    for weight in (SOURCES["float32"], spoiled, torch.full((4, 4), torch.nan), torch.full((4, 4), torch.inf)):
        assert as_half(weight) is None
    assert as_half(torch.zeros(4, 4))[1] == 1


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_rows_bits_do_not_depend_on_its_neighbours(source, threads):
    torch.set_num_threads(threads)
    form, x = linear(SOURCES[source]), randn(33, 321, seed=4)
    whole = form(x)
    for start, count in ((0, 1), (5, 2), (8, 3), (0, 8), (7, 17), (1, 32)):
        assert torch.equal(form(x[start : start + count]), whole[start : start + count])
    torch.set_num_threads(1)


def test_norms():
    x, gain, offset = randn(5, 24), randn(24, seed=1), randn(24, seed=2)
    wide = x.double()
    expected = wide * gain / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(RmsNorm(gain, 1e-3)(x).double(), expected, atol=1e-6, rtol=1e-6)
    tiny = x * 1e-4  # where eps decides
    expected = tiny.double() * gain / (tiny.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(RmsNorm(gain, 1e-5)(tiny).double(), expected, atol=1e-8, rtol=1e-6)
    assert RmsNorm(gain.bfloat16(), 1e-5)(x.bfloat16()).dtype == torch.bfloat16
    assert not RmsNorm(gain, 1e-5)(torch.zeros(2, 24)).any()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain + offset
    torch.testing.assert_close(LayerNorm(gain, offset, 1e-5)(x).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [(24,), (3, 24)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_a_norm_in_one_kernel_is_the_same_norm(shape, dtype, tolerance):
    norm = RmsNorm(torch.randn(shape).to(dtype), 1e-3)
    x = torch.randn(5, *shape).to(dtype)
    torch.testing.assert_close(norm.fused(x), norm.plain(x), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rotation_is_the_rotation_of_halves(dtype):
    turning, positions = rope.default(6, 100.0), torch.tensor([0, 3, 41])
    x = randn(3, 2, 8, seed=5)
    mine = (
        rope.interleave(x.permute(1, 2, 0).reshape(16, 3), 2, 6).view(2, 8, 3).permute(2, 0, 1).to(dtype).contiguous()
    )
    rope.rotate(mine, rope.Rotation(turning, dtype, CPU).at(positions))
    angles = (positions[:, None] * torch.tensor(turning.frequencies))[:, None]
    first, second, rest = x[..., :3], x[..., 3:6], x[..., 6:]
    halves = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    expected = torch.cat([torch.stack(halves, -1).flatten(-2), rest], -1)
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(mine.float(), expected, atol=tolerance, rtol=tolerance)


SPECS = {
    "linear": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn ": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "beta_fast": 20,
    },
    "yarn  ": {"factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 0.9, "truncate": False},
}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_stretched_frequencies_are_transformers(kind, spelling):
    spec = SPECS[kind] | {"rope_type": kind.strip(), "rope_theta": 5e4}
    config = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=256, rope_parameters=dict(spec))
    expected, scale = ROPE_INIT_FUNCTIONS[kind.strip()](config, CPU)
    older = {"rope_theta": spec.pop("rope_theta"), "rope_scaling": spec | {"type": spec.pop("rope_type")}}
    newer = {"rope_parameters": config.rope_parameters}
    values = {"max_position_embeddings": 256} | (newer if spelling == "rope_parameters" else older)
    found = rope_of(Settings(values, "config.json"), 32)
    torch.testing.assert_close(torch.tensor(found.frequencies), expected, atol=0, rtol=1e-6)
    assert found.scale == pytest.approx(scale)


def test_longrope_changes_factors_at_the_border_by_position_alone():
    short, long = [1.0 + i / 10 for i in range(8)], [2.0 + i for i in range(8)]
    spec = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "rope_theta": 1e4}
    config = Phi3Config(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=64,
        original_max_position_embeddings=16,
        rope_parameters=spec,
        pad_token_id=0,
    )
    found = rope_of(Settings(config.to_dict(), "config.json"), 16)
    for length, frequencies in ((16, found.frequencies), (17, found.beyond)):
        expected, scale = ROPE_INIT_FUNCTIONS["longrope"](config, CPU, seq_len=length)
        torch.testing.assert_close(torch.tensor(frequencies), expected, atol=0, rtol=1e-6)
    assert found.scale == pytest.approx(scale)
    turned = rope.Rotation(found, torch.float32, CPU).at(torch.tensor([15, 16]))[:, 0]
    angles = torch.stack([15 * torch.tensor(found.frequencies), 16 * torch.tensor(found.beyond)])
    torch.testing.assert_close(turned, torch.polar(torch.full((), found.scale), angles))


def seen_by_search(segment, positions, parents, window):
    """Which keys a row sees, by walking up from it."""
    rows = []
    for node in range(segment.base, segment.base + segment.rows):
        path, at = set(range(segment.past)), node
        while at >= 0:
            path.add(segment.past + at)
            at = parents[at]
        limit = positions[segment.past + node] - (window or 10**9)
        rows.append([key in path and positions[key] > limit for key in range(len(positions))])
    return torch.tensor(rows)


@pytest.mark.parametrize("window", [None, 1, 2, 3, 5, 100])
@pytest.mark.parametrize(("past", "base"), [(0, 0), (1, 0), (6, 0), (6, 2), (0, 3)])
@pytest.mark.parametrize("parents", [(-1, 0, 1, 2, 3, 4), (-1, -1, 0, 0, 1, 3)])
def test_masks_and_windows_of_trees(window, past, base, parents):
    depths, ancestors = [], torch.eye(6, dtype=torch.bool)
    for node, parent in enumerate(parents):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        if parent >= 0:
            ancestors[node] |= ancestors[parent]
    chain = parents == (-1, 0, 1, 2, 3, 4)
    segment = Segment(0, 0, 6 - base, past, base, None if chain else ancestors[base:])
    positions = [*range(past), *(past + depth for depth in depths)]
    expected = seen_by_search(segment, positions, parents, window)
    found = bias(segment, window, torch.float32, CPU)
    assert torch.equal(found == 0, expected)
    assert torch.equal(found == -torch.inf, ~expected)
