"""No door for code in data, no swallowed error, and a repository that speaks of forerun alone."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

PICKLES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "jsonpickle"}
LOADERS = {  # a call that runs what it reads, and what to use instead
    "eval": "parse the text",
    "exec": "call a function",
    "compile": "call a function",
    "torch.load": "safetensors",
    "torch.jit.load": "safetensors",
    "torch.hub.load": "a local folder",
    "yaml.load": "yaml.safe_load",
    "yaml.unsafe_load": "yaml.safe_load",
    "yaml.full_load": "yaml.safe_load",
    "os.system": "subprocess.run with a list",
    "os.popen": "subprocess.run with a list",
}
DANGEROUS_WHEN_TRUE = {"allow_pickle", "trust_remote_code", "shell"}


def dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """The name of what is called, import aliases undone: 'np.load' is 'numpy.load'; '' if it has none."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, aliases) or '?'}.{node.attr}"
    return ""


def import_aliases(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def unsafe_call(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    name = dotted(node.func, aliases).removeprefix("builtins.")
    if name in LOADERS:
        yield f"line {node.lineno}: {name} runs what it reads; use {LOADERS[name]}"
    if name.endswith(".from_pretrained") and not any(_is_local(keyword) for keyword in node.keywords):
        yield f"line {node.lineno}: a model that is not there is fetched; say local_files_only=True"
    for keyword in node.keywords:
        if keyword.arg in DANGEROUS_WHEN_TRUE and not is_false(keyword.value):
            yield f"line {node.lineno}: {keyword.arg} lets data run code"


def _is_local(keyword: ast.keyword) -> bool:
    return keyword.arg == "local_files_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True


def swallows(node: ast.ExceptHandler) -> Iterator[str]:
    broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
    silent = all(isinstance(s, ast.Pass | ast.Continue) or _is_ellipsis(s) for s in node.body)
    if node.type is None:
        yield f"line {node.lineno}: bare except; name the error"
    if broad and silent:
        yield f"line {node.lineno}: every error is swallowed; count it, or name the one that is meant"


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def hazards(source: str) -> list[str]:
    tree = ast.parse(source)
    aliases = import_aliases(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += unsafe_call(node, aliases)
        if isinstance(node, ast.ExceptHandler):
            found += swallows(node)
        found += [f"{name} runs what it reads" for name in imported(node) if name.split(".")[0] in PICKLES]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT / "src" / "forerun").as_posix())
def test_no_door_for_code_and_no_swallowed_error(path):
    assert not hazards(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "import torch\ntorch.load(p)",
        "from torch import load\nload(p, weights_only=True)",
        "import numpy as np\nnp.load(p, allow_pickle=True)",
        "import numpy as np\nnp.load(p, allow_pickle=flag)",
        "import yaml\nyaml.load(f)",
        "eval('1')",
        "exec(text)",
        "AutoModel.from_pretrained(p, trust_remote_code=True, local_files_only=True)",
        "AutoModel.from_pretrained(p)",
        "AutoModel.from_pretrained(p, local_files_only=False)",
        "subprocess.run(c, shell=True)",
        "try:\n    f()\nexcept:\n    raise",
        "try:\n    f()\nexcept Exception:\n    pass",
        "for x in y:\n    try:\n        f()\n    except BaseException:\n        continue",
    ],
)
def test_a_hazard_is_seen(source):
    assert hazards(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "AutoModel.from_pretrained(p, local_files_only=True)",
        "np.load(p, allow_pickle=False)",
        "re.compile('a')",
        "try:\n    f()\nexcept KeyError:\n    pass",
        "try:\n    f()\nexcept Exception as error:\n    failures.append(error)",
    ],
)
def test_harmless_code_passes(source):
    assert not hazards(source)


# Written so that this file does not match itself.
FOREIGN = re.compile(
    r"""
      /[w]ork/ | /[o]pt/ | /root[/]
    | (?<!\.\./)\b[s]hared/(?:data|papers|peers|hooks|contract_sketch|[A-Z]+\.md)
    | \b[C]EO\b | \bissue[ ]\#?\d | \b(?:this|helper|developer|work)[ ]sessio[n]\b
    | \b(?:DESIGN|STYLE|RELIABILITY|CONVENTIONS)\.m[d]\b
    """,
    re.VERBOSE,
)
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".sh", ".yml", ".yaml", ""}


def foreign_words(text: str) -> list[str]:
    return [f"line {text.count(chr(10), 0, m.start()) + 1}: {m.group()}" for m in FOREIGN.finditer(text)]


def repository_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout: the files of the repository cannot be told from others")
    files = [ROOT / line for line in listing.stdout.splitlines()]
    return [f for f in files if f.suffix in TEXT and f.is_file() and f.stat().st_size < 2**20]


def test_the_repository_speaks_of_forerun_alone():
    files = repository_files()
    assert files
    found = {f.relative_to(ROOT).as_posix(): foreign_words(f.read_text(encoding="utf-8")) for f in files}
    assert not {name: words for name, words in found.items() if words}


@pytest.mark.parametrize(
    ("text", "parts"),
    [  # in two parts, so that this file does not hold the words
        ("see /{}/main", ("wo", "rk")),
        ("in {}/data/books", ("sha", "red")),
        ("the {} said", ("CE", "O")),
        ("as in {} 12", ("iss", "ue")),
        ("made in this {}", ("sess", "ion")),
        ("see {}.md", ("STY", "LE")),
    ],
)
def test_a_foreign_word_is_seen(text, parts):
    assert foreign_words(text.format("".join(parts)))
    assert not foreign_words(text.format("something"))
