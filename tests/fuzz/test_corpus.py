"""R23: what the fuzzers have found, and what they start from, again; and a minute more of each, always the same one.

`scripts/fuzz TARGET SECONDS` looks further, and elsewhere each time.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = int(os.environ.get("FORERUN_FUZZ", "60"))  # of each target
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


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_escapes_for_a_minute(name, tmp_path):
    """The seed is always the same, so a commit that changes no reader tries what the one before it tried."""
    pytest.importorskip("atheris")
    words = [ROOT / "scripts" / "fuzz", name, str(SECONDS), "-seed=1", "-timeout=20", "-rss_limit_mb=1024"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS + 300)
    assert done.returncode == 0, done.stderr[-4000:]
    runs = int(re.search(r"Done (\d+) runs", done.stderr)[1])
    assert runs > 50, done.stderr[-1000:]
