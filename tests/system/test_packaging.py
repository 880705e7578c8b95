"""pyproject.toml, constraints.txt and docs/dependencies.md name the same packages."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$")


def normal(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", name)[0]).lower()


REQUIRED = {normal(r) for r in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    found = [PIN.match(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {normal(m[1]): m[2] for m in found}


def test_every_requirement_is_pinned():
    assert REQUIRED - pins().keys() == set()


def test_a_pin_takes_every_build_of_torch():
    assert pins()["torch"].count("+") == 0


def test_every_requirement_is_explained_and_nothing_else():
    text = (ROOT / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\| ([a-z0-9, -]+) \|", text, re.MULTILINE)
    named = {normal(name) for row in rows for name in row.split(", ")} - {"package"}
    assert named == REQUIRED


def run(*command: object, cwd: Path, **environment: str) -> str:
    words = [str(word) for word in command]
    env = os.environ | environment
    result = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, scikit_build_core.build as b; b.build_wheel(sys.argv[1], {'wheel.cmake': 'false'})"
    run(sys.executable, "-c", build, folder, cwd=ROOT)  # the extension has tests of its own
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_carries_what_the_package_has(wheel):
    package = ROOT / "src" / "forerun"
    ours = [p for p in package.rglob("*") if p.is_file() and not {"__pycache__", "csrc"} & set(p.parts)]
    assert package / "py.typed" in ours
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {p.relative_to(package.parent).as_posix() for p in ours} - names == set()
    assert any(name.endswith("/licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_works_from_a_folder_of_its_own(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = "import forerun.cli; print(forerun.__file__); forerun.cli.main()"
    path = os.pathsep.join([str(tmp_path), *sys.path])  # -S: without the import hook of the editable install
    shown = run(sys.executable, "-S", "-c", code, "methods", "--json", cwd=tmp_path, PYTHONPATH=path)
    assert shown.startswith(str(tmp_path))
    assert '"none"' in shown
