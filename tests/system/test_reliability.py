"""docs/reliability.md names tests that there are, and leaves no row out."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text()
ROWS = [*(f"R{i}" for i in range(1, 27)), *(f"S{i}" for i in range(1, 23))]


def defined(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_is_there_once():
    assert re.findall(r"^\| ([RS]\d+) \|", PAGE, re.MULTILINE) == ROWS


def test_every_test_that_is_named_exists():
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 80
    assert not [f"{file}::{name}" for file, name in named if name not in defined(ROOT / "tests" / file)]


def test_a_row_without_a_test_says_what_is_open():
    bare = re.findall(r"\| – \| (.*) \|$", PAGE, re.MULTILINE)
    assert bare
    assert all("open" in state or "read at each release" in state for state in bare)
