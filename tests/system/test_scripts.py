"""scripts/ is what a person and continuous integration run: from any folder, strict, and said in one line."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*(p for p in sorted((ROOT / "scripts").iterdir()) if p.is_file() and not p.suffix), ROOT / ".ci" / "run"]


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    env = os.environ | environment
    return subprocess.run(words, cwd="/", env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_script_is_strict_and_says_what_it_does(path):
    first, about, strict = path.read_text().splitlines()[:3]
    assert os.access(path, os.X_OK)
    assert first == "#!/usr/bin/env bash"
    assert about.startswith("# ")
    assert strict == "set -euo pipefail"
    assert run("bash", "-n", path).stderr == ""


def test_ci_is_no_cleverer_than_a_person():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    done = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert done == ["scripts/check", "scripts/test"]


def test_a_leading_word_is_a_folder_below_tests():
    result = run(ROOT / "scripts" / "test", "system/test_scripts.py", "--collect-only", "-q", "-k", "cleverer")
    assert result.returncode == 0, result.stderr
    collected = [line for line in result.stdout.splitlines() if "::" in line]
    assert collected == ["tests/system/test_scripts.py::test_ci_is_no_cleverer_than_a_person"]


def test_an_option_s_value_is_not_taken_for_a_folder():
    result = run(
        ROOT / "scripts" / "test", "-k", "system", "--collect-only", "-q", "--ignore=tests", "tests/conftest.py"
    )
    assert "tests/system -k" not in result.stderr
    assert "pytest tests -k system" in result.stderr


@pytest.mark.slow
def test_a_second_install_does_nothing():
    assert run(ROOT / "scripts" / "install").returncode == 0
    second = run(ROOT / "scripts" / "install", PATH="/usr/bin:/bin")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
