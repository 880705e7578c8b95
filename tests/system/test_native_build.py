"""The extension is built where there is a compiler, and not missed where there is none."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from forerun.kernels import native

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src" / "forerun" / "kernels" / "csrc"
COMPILER = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
EXTENSION = {f"forerun/kernels/_native{EXTENSION_SUFFIXES[0]}"}
BUILD = """
import sys, scikit_build_core.build as build
folder, where, *settings = sys.argv[1:]
build.build_wheel(folder, {"build-dir": where, **dict(setting.split("=") for setting in settings)})
"""
QUICK = "cmake.build-type=Debug", "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O0"

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


def run(*command: object, cwd: Path, **environment: str) -> str:
    words = [str(word) for word in command]
    env = os.environ | environment
    result = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def contents(wheel: Path) -> set[str]:
    """What a wheel installs, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def python_files() -> set[str]:
    """What every wheel has to hold: the package without its C++ sources."""
    package = ROOT / "src" / "forerun"
    files = [p for p in package.rglob("*") if p.is_file() and not {"__pycache__", "csrc"} & set(p.parts)]
    return {p.relative_to(package.parent).as_posix() for p in files}


def described(wheel: Path, folder: Path) -> str:
    """What the unpacked wheel says of itself; -S keeps the editable install's import hook away."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    path = os.pathsep.join([str(folder), *sys.path])
    code = "import forerun.kernels.native as n; print(n.__file__); print(n.describe())"
    file, line = run(sys.executable, "-S", "-c", code, cwd=folder, PYTHONPATH=path).splitlines()
    assert Path(file).is_relative_to(folder)
    return line


@needs_compiler
def test_the_extension_is_here_where_a_compiler_is():
    module = native.load()
    assert module is not None, f"{native.describe()} What the compiler said: .venv/forerun-install.log"
    assert module.isa() == module.isas()[0]
    assert module.isas()[-1] == "plain"
    assert native.describe().startswith(f"native kernels: {module.isa()}")


@needs_compiler
@pytest.mark.slow
def test_the_wheel_is_the_package_and_its_extension(tmp_path):
    """With every instruction set that the compiler knows, but without optimizing them, which takes minutes.

    scripts/install leaves out what this processor does not run, so here is where those files are compiled.
    """
    run(sys.executable, "-c", BUILD, tmp_path, tmp_path / "build", *QUICK, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    assert contents(wheel) == python_files() | EXTENSION
    assert described(wheel, tmp_path / "unpacked") == native.describe()
    compiled = {path.name for path in (tmp_path / "build").rglob("isa_*.o*")}
    known = (tmp_path / "build" / "CMakeCache.txt").read_text()
    sets = [path.stem for path in CSRC.glob("isa_*.cpp")]
    assert [name for name in sets if any(f.startswith(f"{name}.") for f in compiled)] == [
        name for name in sets if name == "isa_plain" or f"FORERUN_COMPILES_{name[4:].upper()}:INTERNAL=1" in known
    ]


@pytest.mark.slow
def test_without_a_compiler_the_package_is_whole(tmp_path):
    run(sys.executable, "-c", BUILD, tmp_path, tmp_path / "build", cwd=ROOT, CXX="/nowhere/c++")
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert contents(wheel) == python_files()
    assert described(wheel, tmp_path / "unpacked").startswith("native kernels were not built")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModuleNotFoundError("gone", name=native.NAME), "were not built"),
        (ModuleNotFoundError("no 'other'", name="other"), "could not be loaded (no 'other')"),
        (ImportError("an undefined symbol"), "could not be loaded (an undefined symbol)"),
    ],
)
def test_one_line_says_why_and_what_to_do(monkeypatch, error, reason):
    def refuse(name):
        raise error

    monkeypatch.setattr(native, "import_module", refuse)
    monkeypatch.setattr(native, "find", native.find.__wrapped__)
    assert native.load() is None
    assert native.describe() == f"native kernels {reason}, so passes run in PyTorch; {native.REMEDY}."


@pytest.mark.parametrize(("isa", "line"), [("avx512", "avx512 (vnni, bf16)"), ("avx2", "avx2"), ("plain", "plain")])
def test_one_line_names_the_instruction_set(monkeypatch, isa, line):
    module = type(sys)("_native")
    module.isa = lambda: isa
    monkeypatch.setattr(native, "find", lambda: module)
    assert native.load() is module
    assert native.describe() == f"native kernels: {line}"
