"""A text of a context-free grammar, in the Lark dialect of llguidance.

Does not: read Lark's own regular-expression flags beyond what llguidance knows, or import other files.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled, written
from forerun.guide import Matcher
from forerun.schemas import Bounds, measure_all
from forerun.types import Facts, Setup


class LarkCompiler(Compiler):
    """Text: the grammar, whose first rule is `start`."""

    facts = Facts(evidence="docs/results/README.md#schemas")
    example = 'start: "a" start "b" | "c"'

    @dataclass(frozen=True)
    class Options(Bounds):
        """`most` characters that it may have; the other options are of every JSON schema in it."""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def grammar(self, text: str) -> str:
        measure_all("lark", within("lark", text, self.options.most), self.options)
        return written("lark", lambda: LLMatcher.grammar_from_lark(text))

    def compile(self, text: str) -> Callable[[], Matcher]:
        return compiled("lark", self.setup, self.grammar(text))
