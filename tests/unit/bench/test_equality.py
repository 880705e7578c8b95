import math

import pytest
import torch

from forerun.bench.equality import Judge, first_difference, margin
from forerun.build import guides_for, setup_for
from forerun.config import Config
from forerun.errors import RequestError
from forerun.kernels.race import times
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose
from forerun.types import Constraint, Sampling

GREEDY = Sampling(temperature=0)
PROMPT = (0, 1)


def judge(row, dtype=torch.float32):
    seen = []

    def logits(tokens):
        seen.append(tuple(tokens))
        return torch.tensor(row)

    return Judge(logits, dtype), seen


def test_equal_texts_ask_the_model_nothing():
    referee, seen = judge([0.0, 1.0])
    assert referee.compare(PROMPT, (1, 0, 1), (1, 0, 1), GREEDY) is None
    assert seen == []


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ([1.0, 2.0, 2.00005], "tie"),
        ([1.0, 2.0, 2.001], "divergence"),
        ([3.0, 2.0, 2.00005], "divergence"),  # level with each other, and neither is the best
    ],
)
def test_a_tie_is_told_from_a_divergence(row, kind):
    referee, seen = judge(row)
    found = referee.compare(PROMPT, (0, 2, 0), (0, 1, 1), GREEDY)
    assert (found.kind, found.position, found.expected, found.found) == (kind, 1, 2, 1)
    assert seen == [(0, 1, 0)]  # the beginning that both texts share


def test_a_shorter_text_is_a_divergence():
    found = judge([0.0, 1.0])[0].compare(PROMPT, (1, 0), (1,), GREEDY)
    assert (found.kind, found.expected, found.found, found.gap) == ("divergence", 0, None, math.inf)


def test_penalties_and_bans_are_part_of_the_choice():
    sampling = Sampling(temperature=0, logit_bias={1: 1.0})
    assert judge([1.0, 1.0, 2.0])[0].compare(PROMPT, (2,), (1,), sampling).kind == "tie"
    assert judge([1.0, 1.0, 2.0])[0].compare(PROMPT, (2,), (1,), GREEDY).kind == "divergence"


def test_a_constraint_is_part_of_the_choice_where_its_guides_are_known():
    """After "a" the likeliest token is forbidden, and the next two are level."""
    sampling = Sampling(temperature=0, constraint=Constraint("choice", "ab,ac"))
    row, guides = [9.0, 2.0, 2.0], guides_for(setup_for(Config(), ToyModel(3, 0)))
    knowing = Judge(lambda _: torch.tensor(row), torch.float32, (), guides)
    assert knowing.compare(PROMPT, (0, 1), (0, 2), sampling).kind == "tie"
    with pytest.raises(RequestError, match="has no guide here"):
        judge(row)[0].compare(PROMPT, (0, 1), (0, 2), sampling)


def test_margins_are_two_units_in_the_last_place():
    assert margin(20.0, torch.float32) == margin(20.0, torch.float64) == 1e-4
    for dtype in (torch.bfloat16, torch.float16):
        for best in (20.0, 16.0, 1.0, 0.75, -3.0):
            here = torch.tensor(best, dtype=dtype)
            above = torch.nextafter(here.abs(), torch.tensor(math.inf, dtype=dtype))
            assert margin(best, dtype) == 2 * float(above - here.abs())


def test_equal_draws_tie_where_both_arrive_at_once():
    sampling = Sampling(temperature=0.5, seed=3)
    rng = CounterRng(3)
    rng.begin(0, len(PROMPT))
    first, second = times([rng.ahead(Purpose.TARGET, 0)], torch.arange(2))[0].tolist()
    at_once = [math.log(first) / 2, math.log(second) / 2]
    assert judge(at_once)[0].compare(PROMPT, (0,), (1,), sampling).kind == "tie"
    nearly = judge([at_once[0], at_once[1] + 5e-5])[0].compare(PROMPT, (0,), (1,), sampling)
    assert (nearly.kind, nearly.gap) == ("tie", pytest.approx(5e-5, rel=1e-2))
    far = [at_once[0], at_once[1] + 2e-4]
    assert judge(far)[0].compare(PROMPT, (1,), (0,), sampling).kind == "divergence"


def test_the_first_difference_is_the_first():
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 5, 4)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2
