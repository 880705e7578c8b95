"""Bugs that other engines have had are put into this one, and each is seen by the test that stands for it (R26).

A bug is put into the source as it is imported, in a process of its own, and nothing else is changed: what fails there
passes here, where the same tests run without it.
"""

import os
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
IMPORTER = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location

class Seeded(SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path).decode()
        assert source.count({old!r}) == 1
        return compile(source.replace({old!r}, {new!r}), self.path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            return spec_from_file_location(name, {file!r}, loader=Seeded(name, {file!r}))

sys.meta_path.insert(0, Finder)
"""


@dataclass(frozen=True)
class Bug:
    row: str  # of what others have had
    what: str
    module: str
    old: str  # stands once in the module's source
    new: str
    test: str  # what pytest is asked for, below tests/

    @property
    def file(self) -> str:
        return find_spec(self.module).origin


BUGS = [Bug(**bug) for bug in tomllib.loads((Path(__file__).parent / "seeded_bugs.toml").read_text())["bug"]]


def run(bug, folder):
    """The tests that stand for a bug, with the bug."""
    text = IMPORTER.format(old=bug.old, new=bug.new, module=bug.module, file=bug.file)
    (folder / "sitecustomize.py").write_text(text)
    words = shlex.split(bug.test)
    paths = [str(TESTS / word) if word.partition("::")[0].endswith(".py") else word for word in words]
    # What differs is not asked for: where CI is set, pytest explains it in full, and two long lists take it minutes.
    options = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return subprocess.run(
        command, env=environment | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False, cwd=folder
    )


def test_there_are_40_and_every_source_has_them():
    assert len(BUGS) >= 40
    assert [bug.what for bug in BUGS if Path(bug.file).read_text().count(bug.old) != 1] == []


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.row} {bug.what}" for bug in BUGS])
def test_a_bug_is_seen(bug, tmp_path):
    result = run(bug, tmp_path)
    assert result.returncode == 1, result.stdout[-2000:] + result.stderr[-2000:]  # tests ran, and one failed
    assert " failed" in result.stdout
