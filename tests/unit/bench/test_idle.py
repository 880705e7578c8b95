"""What drafters cost where they have nothing to offer."""

import json

from click.testing import CliRunner

from forerun.bench import idle
from forerun.bench.cli import command
from forerun.bench.drafts import free


def test_every_free_drafter_is_timed_or_said_to_be_left_out():
    found = idle.run(idle.Order(tokens=24, rounds=1))
    timed = [case["drafter"] for case in found["cases"]]
    assert set(timed) < set(free())
    assert {"none", "ngram", "token-recycling", "lookahead", "suffix-decoding"} <= set(timed)
    assert len(found["notes"]) == len(free()) - len(timed)
    assert all(note.startswith("Left out: drafter ") for note in found["notes"])
    assert all(case["us_per_step"] > 0 for case in found["cases"])


def test_who_looks_for_something_costs_more_than_who_does_not():
    order = idle.Order(tokens=24, rounds=2, nodes=4, drafters=("none", "jacobi", "ngram"))
    none, jacobi, ngram = idle.run(order)["cases"]
    assert none["nodes_per_step"] == ngram["nodes_per_step"] == 0
    assert 0 < jacobi["nodes_per_step"] <= 4
    assert none["us_per_step"] < jacobi["us_per_step"]


def test_the_command_ends_in_json():
    result = CliRunner().invoke(command, ["idle", "--rounds", "1", "--drafter", "none"])
    assert result.exit_code == 0, result.output
    (case,) = json.loads(result.stdout.splitlines()[-1])["cases"]
    assert case["drafter"] == "none"
    assert "of 13 ms" in result.stdout
