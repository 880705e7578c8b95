"""A text of a programming or data language, by name (2403.01632).

The languages are the grammars in `languages/`, of our own writing. A text is read as it grows, and what a token may
write is decided on its bytes, so that tokens need not fall on the grammar's borders.
Does not: keep a table of masks by parser state, which is the paper's way to be fast; llguidance computes them. Check
names or types. `python` is a part: simple statements, `def`, `if`, `while`, `for`, at most three blocks deep; `sql` is
SELECT alone. For another grammar there is `lark`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLMatcher

from forerun.constraints.contract import Compiler
from forerun.errors import RequestError, unknown
from forerun.grammars import compiled, written
from forerun.guide import Matcher
from forerun.types import Facts, Setup

_FOLDER = Path(__file__).parent / "languages"


class SyncodeCompiler(Compiler):
    """Text: the name of a language."""

    facts = Facts(keys=("syncode",), paper="2403.01632", evidence="docs/results/README.md#guided")
    example, words = "arithmetic", ("1", "-", "(")

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def grammar(self, text: str) -> str:
        known = {path.stem: path for path in sorted(_FOLDER.glob("*.lark"))}
        if text not in known:  # which is also how no path gets in
            raise RequestError(f"constraint 'syncode': {unknown('forerun', 'language', text[:40], known)}")
        grammar = known[text].read_text(encoding="utf-8")
        return written("syncode", lambda: LLMatcher.grammar_from_lark(grammar))

    def compile(self, text: str) -> Callable[[], Matcher]:
        return compiled("syncode", self.setup, self.grammar(text))
