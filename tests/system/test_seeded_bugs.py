"""Bugs that other engines have had are put into this one, and each is seen by the test that stands for it (R26).

A bug is put into the source as it is imported, in a process of its own, and nothing else is changed: what fails there
passes here, where the same tests run without it.
"""

import multiprocessing
import shlex
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIBRARIES = ["torch", "numpy", "transformers", "pytest", "hypothesis", "scipy.stats"]  # what takes seconds to import
SEEDED = """
import os, sys
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
for name in [name for name in os.environ if name.startswith("PYTEST")]:
    del os.environ[name]
for stream in 1, 2:
    os.dup2(os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
os.chdir({folder!r})
import pytest
sys.exit(pytest.main({words!r}))
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


@pytest.fixture(scope="module")
def processes():
    """Each begins with the libraries, which are imported once for all, and without a module of forerun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def run(bug, folder, processes):
    """The exit code and the output of the tests that stand for a bug, with the bug."""
    paths = [str(TESTS / word) if word.partition("::")[0].endswith(".py") else word for word in shlex.split(bug.test)]
    # What differs is not asked for: where CI is set, pytest explains it in full, and two long lists take it minutes.
    options = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis"]
    options.append("--hypothesis-profile=any failure")
    log = folder / "log"
    seeded = {"old": bug.old, "new": bug.new, "module": bug.module, "file": bug.file}
    text = SEEDED.format(**seeded, log=str(log), folder=str(folder), words=[*options, *paths])
    process = processes.Process(target=exec, args=(text, {}))
    process.start()
    process.join()
    return process.exitcode, log.read_text()


def test_there_are_40_and_every_source_has_them():
    assert len(BUGS) >= 40
    assert [bug.what for bug in BUGS if Path(bug.file).read_text().count(bug.old) != 1] == []


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.row} {bug.what}" for bug in BUGS])
def test_a_bug_is_seen(bug, tmp_path, processes):
    code, said = run(bug, tmp_path, processes)
    assert code == 1, said[-4000:]  # tests ran, and one failed
    assert " failed" in said
