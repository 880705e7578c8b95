"""Count code and hold it to the budget: short functions, small files, few flags, and no golf.

A code line holds at least one token that is neither a comment nor a docstring. A function's body is counted
without its signature, decorators and docstring; a function inside a function counts in both.
Does not: look at tests or scripts; judge whether a line is clear.
"""

import ast
import io
import math
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BODY_P90 = 20  # code lines, over all functions
ENGINE_BODY_MAX = 60
METHOD_FILE_MAX = 250
CONTRACT_MAX = 120
ENGINE_TOTAL_MAX = 1500
# Tokens per code line, so that fewer but denser lines do not pay. click, jinja2 and rich have a mean of 6 to
# 7 and, in their densest files, a 95th percentile of 28, at 88 columns and without tensor expressions.
TOKENS_MEAN_MAX = 12  # over all files
TOKENS_MEDIAN_MAX = 16  # of a file
TOKENS_P95_MAX = 40  # of a file
TOKENS_FROM_LINES = 40  # a shorter file may be one formula
FLAGS_MAX = 80  # of all commands together; engines of this field have several hundred for one
ENVIRONMENT_MAX = 5

SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Function:
    place: str
    lines: int


@dataclass(frozen=True)
class Source:
    """One Python file and what can be counted in it."""

    name: str  # relative to the package, with forward slashes
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def docstring_lines(self) -> set[int]:
        owners = (n for n in self.nodes if isinstance(n, (ast.Module, ast.ClassDef, *DEFINITIONS)))
        found = (owner.body[0] for owner in owners if ast.get_docstring(owner, clean=False) is not None)
        return {line for node in found for line in _span(node)}

    @cached_property
    def tokens_on(self) -> dict[int, int]:
        """Code line -> number of tokens that begin on it; a line inside a long string has none."""
        counts: dict[int, int] = {}
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type in SILENT or token.start[0] in self.docstring_lines:
                continue
            for line in range(token.start[0], token.end[0] + 1):
                counts[line] = counts.get(line, 0) + (line == token.start[0])
        return counts

    @property
    def lines(self) -> int:
        return len(self.tokens_on)

    @cached_property
    def functions(self) -> list[Function]:
        return [self._function(node) for node in self.nodes if isinstance(node, DEFINITIONS)]

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
        body = {line for statement in node.body for line in _span(statement)}
        return Function(f"{self.name}:{node.lineno} {node.name}", len(body & self.tokens_on.keys()))

    @cached_property
    def flags(self) -> set[str]:
        return {s for node in self.nodes for s in _strings(node) if FLAG.fullmatch(s)}

    @cached_property
    def environment(self) -> set[str]:
        """Names read through os.environ[...], os.environ.get(...) or os.getenv(...)."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
                found.add(ast.unparse(node.slice))
            if isinstance(node, ast.Call) and re.search(r"(environ\.\w+|getenv)$", ast.unparse(node.func)):
                found |= {ast.unparse(arg) for arg in node.args[:1]}
        return found


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _strings(node: ast.AST) -> list[str]:
    """The strings of an option declaration: 'a/b' and 'a, b' are several."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.split(r"[/,\s]+", node.value) if node.value.startswith("-") else []
    return []


def percentile(values: list[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values) or [0]
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def read(package: Path) -> list[Source]:
    files = sorted(package.rglob("*.py"))
    return [Source(f.relative_to(package).as_posix(), f.read_text(encoding="utf-8")) for f in files]


def families(sources: list[Source]) -> set[str]:
    """Folders of methods: those with a contract; a model is not a method, its file is an architecture."""
    return {s.name.rpartition("/")[0] for s in sources if s.name.endswith("/contract.py")} - {"models"}


def budget_of_file(name: str, method_folders: set[str]) -> tuple[int, str] | None:
    """The line budget of one file and what it is called, or None where there is no budget."""
    folder, _, file = name.rpartition("/")
    if file == "contract.py":
        return CONTRACT_MAX, "a contract"
    if folder in method_folders and file != "__init__.py":
        return METHOD_FILE_MAX, "a method file"
    return None


def function_violations(sources: list[Source]) -> Iterator[str]:
    functions = [f for source in sources for f in source.functions]
    p90 = percentile([f.lines for f in functions], 0.9)
    if p90 > BODY_P90:
        longest = ", ".join(f"{f.place} ({f.lines})" for f in sorted(functions, key=lambda f: -f.lines)[:5])
        yield f"The 90th percentile of function bodies is {p90} lines, over {BODY_P90}; longest: {longest}."
    for f in functions:
        if f.place.startswith("engine/") and f.lines > ENGINE_BODY_MAX:
            yield f"{f.place} has {f.lines} code lines; a body in engine/ may have {ENGINE_BODY_MAX}."


def file_violations(sources: list[Source]) -> Iterator[str]:
    method_folders = families(sources)
    for source in sources:
        budget = budget_of_file(source.name, method_folders)
        if budget and source.lines > budget[0]:
            yield f"{source.name} has {source.lines} code lines; {budget[1]} may have {budget[0]}."
        counts = list(source.tokens_on.values())
        for what, share, most in (
            ("median", 0.5, TOKENS_MEDIAN_MAX),
            ("95th percentile", 0.95, TOKENS_P95_MAX),
        ):
            got = percentile(counts, share)
            if len(counts) >= TOKENS_FROM_LINES and got > most:
                yield f"{source.name}: the {what} of tokens per line is {got}, over {most}; write it plainer."


def total_violations(sources: list[Source]) -> Iterator[str]:
    totals = (
        ("engine/ in code lines", lines_of(sources, "engine"), ENGINE_TOTAL_MAX),
        ("the number of command-line flags", len(all_flags(sources)), FLAGS_MAX),
        ("the number of environment variables", len(all_environment(sources)), ENVIRONMENT_MAX),
        ("mean tokens per code line", round(mean_tokens(sources), 1), TOKENS_MEAN_MAX),
    )
    for what, got, most in totals:
        if got > most:
            yield f"The budget for {what} is {most}, and there are {got}: take some away."


def violations(sources: list[Source]) -> list[str]:
    """One sentence per broken budget."""
    return [*function_violations(sources), *file_violations(sources), *total_violations(sources)]


def lines_of(sources: list[Source], folder: str) -> int:
    return sum(s.lines for s in sources if s.name.startswith(f"{folder}/"))


def all_flags(sources: list[Source]) -> set[str]:
    return {flag for source in sources for flag in source.flags}


def all_environment(sources: list[Source]) -> set[str]:
    return {name for source in sources for name in source.environment}


def mean_tokens(sources: list[Source]) -> float:
    return statistics.mean([count for s in sources for count in s.tokens_on.values()] or [0])


def table(sources: list[Source]) -> Iterator[str]:
    """Rows of folder, files, code lines, functions, body p90 and longest, tokens per line."""
    head = f"{'folder':<14}{'files':>6}{'lines':>8}{'functions':>11}"
    yield f"{head}{'body p90':>10}{'longest':>9}{'tokens/line':>13}"
    groups: dict[str, list[Source]] = {}
    for source in sources:
        groups.setdefault(source.name.split("/")[0] if "/" in source.name else ".", []).append(source)
    for name, members in [*sorted(groups.items()), ("all", sources)]:
        bodies = [f.lines for s in members for f in s.functions] or [0]
        lines = sum(s.lines for s in members)
        yield (
            f"{name:<14}{len(members):>6}{lines:>8}{len(bodies):>11}{percentile(bodies, 0.9):>10}"
            f"{max(bodies):>9}{mean_tokens(members):>13.1f}"
        )


def main() -> int:
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "forerun"
    sources = read(package)
    if not sources:
        print(f"size: {package} holds no Python file; name the package's folder.")
        return 1
    print("\n".join(table(sources)))
    print(f"flags: {len(all_flags(sources))} of {FLAGS_MAX}", end=" · ")
    print(f"environment variables: {len(all_environment(sources))} of {ENVIRONMENT_MAX}")
    broken = violations(sources)
    print("\n".join(f"size: {sentence}" for sentence in broken) or "size: within budget")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
