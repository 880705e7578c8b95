"""What acceptance is worth by public figures: the model by hand, and the inversion that it must explain."""

import pytest

from forerun.study.costs import A100, CASES, CONTEXT, RTX_3090, VICUNA, Decoder, Gpu, arithmetic, costs, run, worth

SLOW = Gpu("made up", 1e9, 8e9, 4)


def test_tiles_and_waves_by_hand():
    one = 2 * 10 * 4 / 8e9  # seconds of a number on one of four processors
    assert arithmetic(SLOW, 65, 10, 100, "ideal") == pytest.approx(2 * 65 * 10 * 100 / 8e9)
    assert arithmetic(SLOW, 65, 10, 100, "tiles") == pytest.approx(128 * 128 * one / 4)
    assert arithmetic(SLOW, 65, 10, 100, "waves") == pytest.approx(64 * 64 * one)  # four tiles, one wave
    assert arithmetic(SLOW, 65, 10, 257, "waves") == pytest.approx(min(3 * 64 * 64, 2 * 128 * 64) * one)
    assert arithmetic(SLOW, 1, 10, 100, "waves") == pytest.approx(2 * 10 * 100 / 8e9)


def test_one_row_waits_for_memory_alone():
    seven = VICUNA["7B"]
    weights = sum(2 * inputs * outputs * count for inputs, outputs, count in seven.matrices)
    assert weights == pytest.approx(2 * 6.6e9, rel=0.01)
    assert costs(RTX_3090, seven).of(1) == pytest.approx((weights + CONTEXT * seven.token_bytes) / 936e9)


def test_no_pass_is_shorter_than_its_framework():
    curve = costs(A100[0], Decoder("small", 64, 64, 1, 64), framework=0.5)
    assert set(curve.seconds) == {0.5}
    assert worth(curve, 2.5, 81) == 2.5


SAME = [case for case in CASES if case.model == "7B" and case.method == "Token Recycling"]


def test_the_same_acceptance_is_worth_less_on_the_smaller_gpu():
    """2.73 tokens a step: 1.40x on an RTX 3090, 2.22x on an A100 of 80 GB."""
    small, large = SAME
    assert small.accepted == large.accepted == 2.73
    found = {gpu.name: worth(costs(gpu, VICUNA["7B"]), 2.73, 81) for gpu in (RTX_3090, *A100[1:])}
    assert found.pop("RTX 3090") == pytest.approx(1.40, rel=0.15)
    assert list(found.values()) == [pytest.approx(2.22, rel=0.15)] * 2


def test_peak_rates_alone_do_not_explain_it():
    assert worth(costs(RTX_3090, VICUNA["7B"], "ideal"), 2.73, 81) > 1.5 * 1.40


def test_every_case_is_reported_with_its_error():
    cases = run()["cases"]
    assert len(cases) == sum(len(case.gpus) for case in CASES)
    assert all(case["error"] == pytest.approx(case["waves"] / case["measured"] - 1) for case in cases)
