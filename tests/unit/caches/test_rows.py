"""Keys and values in int8: the nearest whole multiples of their scale, and nothing broken is hidden."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.layers.kv_rows import KVRows, encode
from forerun.types import KVLayout

CPU = torch.device("cpu")


@given(numbers=st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=40))
def test_a_number_comes_back_within_half_a_step(numbers):
    exact = torch.tensor(numbers)
    whole, scale = encode(exact)
    assert whole.dtype == torch.int8
    assert whole.abs().max() <= 127
    assert ((whole * scale).double() - exact.double()).abs().max() <= scale.double() * 0.5001


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows(broken):
    whole, scale = encode(torch.tensor([[1.0, broken, 2.0], [1.0, 3.0, 2.0]]))
    back = whole * scale
    assert not back[0].isfinite().all()
    assert back[1].isfinite().all()


def test_rows_nobody_wrote_are_poisoned_by_their_scale():
    layout = KVLayout((2,), (8,), torch.float32, CPU, torch.int8)
    rows = KVRows(layout, 4)
    rows.write(0, rows.place([0, 1]), torch.ones(2, 2, 8), torch.ones(2, 2, 8))
    rows.poison(1, 1)
    keys, values = rows.read(0, lambda strip: strip)
    for part in (keys, values):
        assert torch.equal(part[:, 0], torch.ones(2, 8))
        assert part[:, 1].isnan().all()


@given(
    source=st.lists(st.integers(0, 9), max_size=7),
    places=st.permutations(range(10)),
    kept=st.sampled_from([None, torch.int8]),
)
def test_rows_move_as_if_all_were_read_before_any_is_written(source, places, kept):
    rows, to = KVRows(KVLayout((2, 1), (8, 4), torch.float32, CPU, kept), 10), places[: len(source)]
    generator = torch.Generator().manual_seed(0)
    for layer, (heads, dim) in enumerate([(2, 8), (1, 4)]):
        new = torch.randn(2, 10, heads, dim, generator=generator)
        rows.write(layer, rows.place(range(10)), *new)
    before = [[part.clone() for part in rows.read(layer, lambda strip: strip)] for layer in (0, 1)]
    rows.move(source, to)
    for layer, parts in enumerate(before):
        for part, now in zip(parts, rows.read(layer, lambda strip: strip), strict=True):
            part[:, to] = part[:, source]
            assert torch.equal(part, now)


def test_memory_of_a_token():
    layout = KVLayout((2, 1), (64, 32), torch.float32, CPU)
    assert layout.token_bytes == 2 * 4 * (2 * 64 + 32)
    whole = KVLayout((2, 1), (64, 32), torch.float32, CPU, torch.int8)
    assert whole.token_bytes == 2 * (2 * 68 + 36)
    stores = KVRows(whole, 10)
    strips = (*stores.keys, *stores.values, *stores.key_scales, *stores.value_scales)
    assert sum(strip.nbytes for strip in strips) == (10 + 1) * whole.token_bytes  # and the row that nobody reads
