"""Any JSON object.

Does not: say what it holds; that is what json_schema is for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from forerun.constraints.contract import Compiler
from forerun.errors import RequestError
from forerun.grammars import compiled, grammar_of, written
from forerun.guide import Matcher
from forerun.types import Facts, Setup


class JsonObjectCompiler(Compiler):
    """Text: none."""

    facts = Facts()
    example, words = "", ("{", "}", " ")

    @dataclass(frozen=True)
    class Options:
        """`whitespace`: as `json_schema` has it."""

        whitespace: bool = True

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def grammar(self, text: str) -> str:
        if text:
            raise RequestError(f"constraint 'json_object' got {text!r:.40}; leave the text out, or use json_schema.")
        whitespace = self.options.whitespace
        return written("json_object", lambda: grammar_of('{"type": "object"}', whitespace=whitespace))

    def compile(self, text: str) -> Callable[[], Matcher]:
        return compiled("json_object", self.setup, self.grammar(text))
