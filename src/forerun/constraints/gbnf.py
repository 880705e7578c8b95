"""A text of a context-free grammar, in the GBNF dialect of llama.cpp.

Does not: read what llguidance's own translation to Lark does not know.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled, written
from forerun.guide import Matcher
from forerun.types import Facts, Setup

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


class GbnfCompiler(Compiler):
    """Text: the grammar, whose first rule is `root`."""

    facts = Facts(evidence="docs/results/README.md#schemas")
    example = 'root ::= "a" root "b" | "c"'

    @dataclass(frozen=True)
    class Options:
        """`most` characters that it may have."""

        most: int = 65_536

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def grammar(self, text: str) -> str:
        spelled = _ESCAPE.sub(_character, within("gbnf", text, self.options.most))
        return written("gbnf", lambda: LLMatcher.grammar_from_lark(gbnf_to_lark(spelled)))

    def compile(self, text: str) -> Callable[[], Matcher]:
        return compiled("gbnf", self.setup, self.grammar(text))


def _character(escape: re.Match[str]) -> str:
    r"""What \u or \U stands for; llguidance's translation writes these without their leading zeros."""
    digits = escape[1] or escape[2]
    code = int(digits, 16) if digits else 0
    if code < 0x80:  # noqa: PLR2004 - ASCII, which may mean something in a grammar
        return f"\\x{code:02x}" if digits else escape[0]
    return chr(code) if code <= sys.maxunicode else escape[0]
