"""What runs a GPU's kernels on a CPU does what a GPU does, and says so where a kernel asks for what a GPU refuses."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_emulator_agrees_with_plain_formulas_and_finds_missing_waits(tmp_path):
    source, program = Path(__file__).with_name("emulate_check.cpp"), tmp_path / "check"
    subprocess.run(["g++", "-O1", "-std=c++20", "-DTHREADS=96", "-o", program, source], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert said.startswith("all right")
