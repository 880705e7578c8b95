"""Every example runs as a person would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example):
    found = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_short(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 40
