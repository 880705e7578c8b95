"""A text that a regular expression matches from its beginning to its end.

Does not: look around or back at groups; read more than Rust's syntax without these.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled, written
from forerun.guide import Matcher
from forerun.types import Facts, Setup


class RegexCompiler(Compiler):
    """Text: the expression."""

    facts = Facts()
    example = "a(b|c)+a?b"

    @dataclass(frozen=True)
    class Options:
        """`most` characters that it may have."""

        most: int = 1024

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def grammar(self, text: str) -> str:
        text = within("regex", text, self.options.most)
        return written("regex", lambda: LLMatcher.grammar_from_regex(text))

    def compile(self, text: str) -> Callable[[], Matcher]:
        return compiled("regex", self.setup, self.grammar(text))
