"""What README.md says is run: its Python example, its commands, and its map of the source tree."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
MAP_START = "src/forerun/"


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, body) of every fenced block."""
    return FENCE.findall(text)


def commands(text: str) -> list[list[str]]:
    """The words of every line of a block, and of every `span`, that begins with one of our programs."""
    lines = [line for language, body in blocks(text) if language != "python" for line in body.splitlines()]
    lines += SPAN.findall(FENCE.sub("", text))
    ours = [line.strip().removeprefix("$ ") for line in lines]
    ours = [line for line in ours if re.match(r"scripts/\w|forerun [a-z-]", line)]
    return [shlex.split(line, comments=True) for line in dict.fromkeys(ours)]


def examples() -> list[str]:
    return [body for language, body in blocks(README) if language == "python"]


def test_the_python_example_is_five_lines_or_fewer():
    code = [line for line in examples()[0].splitlines() if line.strip()]
    assert 0 < len(code) <= 5


@pytest.mark.parametrize("code", examples())
def test_a_python_example_runs(code, tmp_path):
    # In a process and a folder of its own, as a reader would paste it.
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "print(" not in code or result.stdout.strip()


def test_the_readme_shows_the_two_commands():
    named = {words[0] for words in commands(README)}
    assert {"scripts/demo", "scripts/test"} <= named


@pytest.mark.parametrize("words", [w for w in commands(README) if w[0].startswith("scripts/")], ids=" ".join)
def test_a_script_exists_and_can_be_run(words):
    path = ROOT / words[0]
    assert path.is_file()
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!")


@pytest.mark.parametrize("words", [w for w in commands(README) if w[0] == "forerun"], ids=" ".join)
def test_a_forerun_command_knows_its_words(words):
    names = [w for w in words[1:2] if not w.startswith("-")]
    flags = [w.split("=")[0] for w in words[1:] if w.startswith("--")]
    help_command = [Path(sys.executable).with_name("forerun"), *names, "--help"]
    result = subprocess.run(help_command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert [flag for flag in flags if flag not in result.stdout] == []


@pytest.mark.parametrize("target", [t for t in dict.fromkeys(LINK.findall(README)) if "://" not in t])
def test_a_link_leads_somewhere(target):
    assert (ROOT / target).exists()


PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_source_file_that_a_page_names_exists(page):
    spans = {span for span in SPAN.findall(page.read_text()) if re.fullmatch(r"[\w/]+\.py", span)}
    example = {"drafters/mine.py"}  # the method that a reader is about to write
    assert {s for s in spans - example if not any((base / s).exists() for base in (ROOT, ROOT / MAP_START))} == set()


@pytest.mark.slow
def test_the_demo_runs_and_checks_itself():
    command = [ROOT / "scripts" / "demo", "Once upon a time"]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical to plain decoding: yes" in result.stdout
    for word in ("tokens", "steps", "tokens per step", "tokens/s"):
        assert word in result.stdout


def parse_map(text: str) -> set[str]:
    """Paths that a map names: a folder ends in '/'; a line may name several; a deeper line is in the one above.

    The names of a line end at the first two spaces, '—' or '#'; what follows says what they are.
    """
    found, parents = set(), [(-1, "")]
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        names = re.split(r"  |—|#", line.strip())[0].replace(",", " ").split()
        names = [name for name in names if name.endswith(("/", ".py"))]
        if not names:
            continue
        while parents[-1][0] >= indent:
            parents.pop()
        found |= {parents[-1][1] + name for name in names}
        parents.append((indent, parents[-1][1] + names[-1]))
    return found


def the_map() -> set[str]:
    maps = [body for _, body in blocks(README) if body.startswith(MAP_START)]
    assert len(maps) == 1, f"README.md needs one fenced block that starts with {MAP_START}"
    return parse_map(maps[0])


def entries(folder: str) -> set[str]:
    """Folders with Python in them, and Python files, directly in a folder."""
    inside = [p for p in (ROOT / folder).iterdir() if not p.name.startswith((".", "__"))]
    files = {f"{folder}{p.name}" for p in inside if p.suffix == ".py"}
    folders = {f"{folder}{p.name}/" for p in inside if p.is_dir() and any(p.rglob("*.py"))}
    init = {f"{folder}__init__.py"} if (ROOT / folder / "__init__.py").exists() else set()
    return files | folders | init


def test_the_map_names_only_what_exists():
    assert {name for name in the_map() if not (ROOT / name).exists()} == set()


def test_the_map_names_all_of_the_package():
    # Data folders below the package and __init__.py may stay out of the map, nothing else.
    named = {name for name in the_map() if name.startswith(MAP_START)}
    assert entries(MAP_START) - named <= {f"{MAP_START}__init__.py"}


def test_a_folder_that_lists_files_lists_them_all():
    named = the_map()
    opened = {str(Path(name).parent) + "/" for name in named} - {"./", "src/", MAP_START}
    listed = {folder: {name for name in named if str(Path(name).parent) + "/" == folder} for folder in opened}
    missing = {folder: entries(folder) - names - {f"{folder}__init__.py"} for folder, names in listed.items()}
    assert {folder: names for folder, names in missing.items() if names} == {}


def test_a_map_is_read():
    text = "src/forerun/\n  a.py    one\n  b/ c/   two\n  d/\n    e.py, f.py  three\n  g/   d.py\ntests/\n"
    inner = {"a.py", "b/", "c/", "d/", "d/e.py", "d/f.py", "g/"}
    assert parse_map(text) == {"src/forerun/", "tests/", *(f"src/forerun/{name}" for name in inner)}
