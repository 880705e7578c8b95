"""The layout is a law: imports point down, files and rows agree, the engine knows no method, sizes hold.

Each rule is a function from source text to sentences, and is shown a source that breaks it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from forerun.registry import Registry

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "forerun"

# The layer of every unit that is not a family, lowest first. A family is a folder with a contract and a table;
# models/ has a contract too, but what stands there is found by a folder's config, not by a method's name.
LAYERS = {
    "values": {
        "types",
        "errors",
        "registry",
        "rng",
        "sampling",
        "sheet",
        "host",
        "heads",
        "reader",
        "look",
        "growth",
        "member",
        "config",
        "files",
        "kernels",
        "stores",
        "drafting",
        "guide",
        "walk",
        "grammars",
        "schemas",
        "cell",
    },
    "blocks": {"layers", "weights"},
    "models": {"models"},
    "engine": {"engine"},
    "build": {"build"},
    "kit": {"testing"},
    "face": {
        "llm",
        "server",
        "ray",
        "transformers",
        "vllm",
        "cli",
        "terminal",
        "methods",
        "bench",
        "study",
        "train",
        "tune",
        "quantize",
        "datastore",
        "batch",
        "__init__",
        "__main__",
    },
}
CONTRACTS = {path.parent.name for path in PACKAGE.glob("*/contract.py")}
FAMILIES = CONTRACTS - {"models"}

# Who may import whom; a family has a contract, a table (its __init__) and members.
MAY_IMPORT = {
    "values": {"values"},
    "contract": {"values", "contract"},
    "table": {"values", "contract"},
    "blocks": {"values", "blocks", "contract"},
    "member": {"values", "blocks", "contract"},  # and members of its own family
    "engine": {"values", "contract", "engine"},
    "models": {"values", "blocks", "contract", "models"},
    "build": {"values", "contract", "table", "models", "engine"},  # puts an engine together from the tables
    "kit": {"values", "blocks", "contract", "table", "member", "models", "engine", "build", "kit"},
    "face": {"values", "blocks", "contract", "table", "member", "models", "engine", "build", "kit", "face"},
}


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def unit(module: str) -> tuple[str, str]:
    """(layer, family or unit) of a dotted name below forerun."""
    parts = module.split(".")[1:] or ["__init__"]
    if parts[0] in CONTRACTS and parts[1:] == ["contract"]:
        return "contract", parts[0]
    if parts[0] in FAMILIES:
        return "table" if len(parts) == 1 else "member", parts[0]
    layers = [layer for layer, units in LAYERS.items() if parts[0] in units]
    assert layers, f"{module} stands in no layer: put it into LAYERS, or give its folder a contract.py."
    return layers[0], parts[0]


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, anywhere in the file; a module taken from a package counts as itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides its direction"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module or ""


def wrong_imports(module: str, source: str) -> list[str]:
    layer, name = unit(module)
    wrong = []
    for target in imports(ast.parse(source)):
        if target.split(".")[0] != "forerun":
            continue
        other_layer, other = unit(target)
        own_family = layer == "member" and other == name
        if other_layer not in MAY_IMPORT[layer] and not own_family:
            wrong.append(f"{module} ({layer}) imports {target} ({other_layer})")
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    assert not wrong_imports(module, MODULES[module].read_text())


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("forerun.types", "import forerun.engine.engine"),
        ("forerun.errors", "from forerun import llm"),
        ("forerun.engine.engine", "from forerun.caches.contiguous import ContiguousCache"),
        ("forerun.engine.engine", "from forerun.caches import contiguous"),
        ("forerun.engine.engine", "from forerun.caches import CACHES"),
        ("forerun.engine.engine", "def f():\n    from forerun.llm import LLM"),
        ("forerun.caches.contiguous", "from forerun.models.toy import ToyModel"),
        ("forerun.caches.contiguous", "from forerun.engine.batch import pack"),
        ("forerun.caches.contract", "from forerun.caches.contiguous import ContiguousCache"),
        ("forerun.layers.rope", "import forerun.models.transformer"),
        ("forerun.models.transformer", "from forerun.drafters.contract import Drafter\nimport forerun.build"),
        ("forerun.build", "from forerun.drafters.ngram import NgramDrafter"),
        ("forerun.engine.engine", "from forerun.build import build_engine"),
    ],
)
def test_a_wrong_import_is_seen(module, source):
    assert wrong_imports(module, source)


def test_a_relative_import_is_seen():
    with pytest.raises(AssertionError, match="relative"):
        wrong_imports("forerun.engine.engine", "from . import batch")


def tables() -> dict[str, Registry]:
    """Package -> its table, for every folder that defines one."""
    found = {}
    for name, path in MODULES.items():
        if path.name == "__init__.py" and path.parent != PACKAGE:
            values = vars(import_module(name)).items()
            rows = [value for key, value in values if key.isupper() and isinstance(value, Registry)]
            found.update((name, table) for table in rows if table.package == name)
    return found


TABLES = tables()


def members(package: str) -> set[str]:
    """Dotted names, below the package, of its member files; a folder with its own table keeps its own."""
    folder = MODULES[package].parent
    others = [MODULES[p].parent for p in TABLES if p.startswith(f"{package}.")]
    files = [f for f in folder.rglob("*.py") if not any(f.is_relative_to(other) for other in others)]
    stems = {".".join(f.relative_to(folder).with_suffix("").parts) for f in files if f.stem != "__init__"}
    return stems - {"contract"}


def test_every_family_has_a_table():
    assert FAMILIES
    assert {f"forerun.{family}" for family in FAMILIES} <= TABLES.keys()


@pytest.mark.parametrize("package", TABLES)
def test_one_file_one_row(package):
    assert members(package) == TABLES[package].modules()


ROWS = [(package, name) for package, table in TABLES.items() for name in table.table]


@pytest.mark.parametrize(("package", "name"), ROWS)
def test_a_row_leads_to_a_class_of_its_own_file(package, name):
    target = TABLES[package].table[name]
    found = TABLES[package][name]
    assert f"{found.__module__}:{found.__name__}" == f"{package}.{target}"


def method_names() -> tuple[set[str], set[str]]:
    """Registered names (but for 'none', which is an ordinary word) and the names of their classes."""
    rows = [row for table in TABLES.values() for row in table.table.items()]
    return {name for name, _ in rows} - {"none"}, {target.split(":")[1] for _, target in rows}


def asks_for_a_method(source: str) -> list[str]:
    """Where a source names a method, or asks what something is instead of reading its facts."""
    names, classes = method_names()
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names | classes:
            found.append(f"line {node.lineno}: the method {node.value!r} is named")
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).split(".")[-1] in classes:
            found.append(f"line {node.lineno}: {ast.unparse(node)} is a method's class")
        if isinstance(node, ast.Call | ast.Attribute) and asks_what_it_is(node):
            found.append(f"line {node.lineno}: {ast.unparse(node)} asks what facts should declare")
    return found


def asks_what_it_is(node: ast.Call | ast.Attribute) -> bool:
    """Whether a class or a missing attribute is asked for; the class of an error may be."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    name = ast.unparse(node.func)
    if name == "isinstance":
        return not ast.unparse(node.args[1]).endswith("Error")
    if name == "type":
        return len(node.args) == 1 and ast.unparse(node.args[0]) not in {"error", "problem"}
    return name in {"issubclass", "hasattr"} or (name == "getattr" and len(node.args) == 3)


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("forerun.engine")])
def test_the_engine_names_no_method(module):
    assert not asks_for_a_method(MODULES[module].read_text())


@pytest.mark.parametrize(
    "source",
    [
        f"if drafter.name == '{ROWS[0][1]}': pass",
        f"x = {{'{ROWS[-1][1]}': 1}}",
        "isinstance(cache, Cache)",
        "hasattr(drafter, 'observe')",
        "getattr(drafter, 'width', 8)",
        "type(cache) is Cache",
        "type(cache).__name__ == 'Cache'",
        "cache.__class__ is Cache",
        "ContiguousCache(layout)",
        "caches.ContiguousCache(layout)",
    ],
)
def test_a_named_method_is_seen(source):
    assert asks_for_a_method(source)


def size(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "size.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_sizes_are_within_budget():
    result = size(PACKAGE)
    assert result.returncode == 0, result.stdout + result.stderr


STATEMENTS = {n: "".join(f"    a = {i}\n" for i in range(n)) for n in (21, 61)}


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("a.py", "def f():\n" + STATEMENTS[21], "90th percentile of function bodies is 21"),
        (
            "engine/a.py",
            f"def f():\n{STATEMENTS[61]}" + "def g(): pass\n" * 20,
            "a body in engine/ may have 60",
        ),
        ("engine/a.py", "a = 1\n" * 1501, "engine/ in code lines is 1500, and there are 1501"),
        ("drafters/contract.py", "a = 1\n" * 121, "a contract may have 120"),
        ("drafters/a.py", "a = 1\n" * 251, "a method file may have 250"),
        ("a.py", "f(a, b, c, d, e, g, h, i)\n" * 40, "median of tokens per line is 18"),
        ("a.py", "f(a, b, c, d, e, g)\n" * 30, "mean tokens per code line is 12, and there are 13.6"),
        (
            "a.py",
            "a = 1\n" * 90 + ("f(" + "a, " * 20 + ")\n") * 10,
            "95th percentile of tokens per line is 43",
        ),
        (
            "cli.py",
            "".join(f"option('--f{chr(97 + i % 26)}{i}')\n" for i in range(81)),
            "command-line flags is 80",
        ),
        ("a.py", "".join(f"os.environ['A{i}']\n" for i in range(3)) + "os.getenv('B')\n" * 9, None),
        ("a.py", "".join(f"os.environ.get('A{i}')\n" for i in range(6)), "environment variables is 5, and"),
    ],
)
def test_a_broken_budget_is_seen(tmp_path, name, source, sentence):
    for place, text in {"drafters/contract.py": "a = 1\n", name: source}.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = size(tmp_path)
    assert (result.returncode == 0) == (sentence is None), result.stdout
    assert sentence is None or sentence in result.stdout


def test_comments_docstrings_and_blank_lines_are_free(tmp_path):
    body = '    """Doc.\n\n    More.\n    """\n' + "    # note\n\n" * 30 + "    return 1\n"
    (tmp_path / "a.py").write_text(f'"""Top.\n\nMore.\n"""\n\ndef f():\n{body}')
    result = size(tmp_path)
    assert result.returncode == 0
    assert result.stdout.splitlines()[1].split()[:5] == [".", "1", "2", "1", "1"]
