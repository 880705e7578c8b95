"""A text of a context-free grammar, in the Lark dialect of llguidance.

Does not: read Lark's own regular-expression flags beyond what llguidance knows, or import other files.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled
from forerun.guide import Matcher
from forerun.types import Facts, Setup


class LarkCompiler(Compiler):
    """Text: the grammar, whose first rule is `start`."""

    facts = Facts(evidence="docs/results/README.md#schemas")
    example = 'start: "a" start "b" | "c"'

    @dataclass(frozen=True)
    class Options:
        """`most` characters that it may have."""

        most: int = 65_536

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        text = within("lark", text, self.options.most)
        return compiled("lark", self.setup, lambda: LLMatcher.grammar_from_lark(text))
