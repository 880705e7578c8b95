"""R23: what the fuzzers have found, and what they start from, again; `scripts/fuzz TARGET SECONDS` goes on from it."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from targets import TARGETS  # noqa: E402 - it stands beside this file

sys.path.remove(str(HERE))
FILES = sorted((HERE / "corpus").rglob("*.bin"))


def test_every_target_has_a_corpus():
    assert {file.parent.name for file in FILES} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_escapes(name):
    for file in FILES:
        if file.parent.name == name:
            TARGETS[name](file.read_bytes())
    if name != "template":
        for file in FILES:  # what is meant for others too
            TARGETS[name](file.read_bytes())
