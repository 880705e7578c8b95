"""The study of Jacobi iteration: its fixed point is the greedy text, and its figures are what a trajectory shows."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from forerun.models.toy import ToyModel
from forerun.study import jacobi
from forerun.study.cli import command
from forerun.testing.reference import Reference
from forerun.types import Sampling


@pytest.mark.parametrize("seed", range(4))
def test_the_fixed_point_is_the_greedy_text(seed):
    model = ToyModel(6, seed)
    windows = jacobi.trajectory(model, (0, 1, 2), 12)
    assert tuple(windows[-1]) == Reference(model).greedy((0, 1, 2), Sampling(temperature=0), 12)
    assert (windows[-1] == windows[-2]).all()
    assert len(windows) <= 14
    for done, window in enumerate(windows):  # a pass settles one more position at least
        assert (window[:done] == windows[-1][:done]).all()


def test_figures_by_hand():
    """Position 1 is right at once, then wrong, then right; position 2 is right before position 1 is settled."""
    windows = np.array([[9, 1, 9], [0, 9, 9], [0, 1, 2], [0, 1, 2]])
    found = jacobi.figures(windows)
    assert found["passes"] == 2
    assert found["positions_per_pass"] == 1.5
    assert found["first_right"] == [1, 0, 2]
    assert found["settled"] == [1, 2, 2]
    assert found["ahead"] == pytest.approx(1 / 3)
    assert found["right"] == [".#.", "#..", "###"]


def test_a_text_that_repeats_its_last_token_needs_no_pass():
    found = jacobi.figures(np.array([[1, 1], [1, 1]]))
    assert (found["passes"], found["settled"], found["first_right"]) == (0, [0, 0], [0, 0])


def test_the_command_writes_figures_and_a_picture(tmp_path):
    asked = ["jacobi", "--categories", "story", "--prompts", "1", "--tokens", "6", "--out", str(tmp_path)]
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    case = found["cases"][0]
    assert case["category"] == "story"
    assert len(case["settled"]) == 6
    assert json.loads((tmp_path / "jacobi.json").read_text())["cases"] == found["cases"]
    assert (tmp_path / "jacobi.png").read_bytes().startswith(b"\x89PNG")
