"""A text of a context-free grammar, in the GBNF dialect of llama.cpp.

Does not: read what llguidance's own translation to Lark does not know.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled
from forerun.guide import Matcher
from forerun.types import Facts, Setup


class GbnfCompiler(Compiler):
    """Text: the grammar, whose first rule is `root`."""

    facts = Facts()
    example = 'root ::= "a" root "b" | "c"'

    @dataclass(frozen=True)
    class Options:
        """`most` characters that it may have."""

        most: int = 65_536

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        text = within("gbnf", text, self.options.most)
        return compiled("gbnf", self.setup, lambda: str(LLMatcher.grammar_from_lark(gbnf_to_lark(text))))
