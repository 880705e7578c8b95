"""Any JSON object.

Does not: say what it holds; that is what json_schema is for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLMatcher

from forerun.constraints.contract import Compiler
from forerun.errors import RequestError
from forerun.grammars import compiled
from forerun.guide import Matcher
from forerun.types import Facts, Setup


class JsonObjectCompiler(Compiler):
    """Text: none."""

    facts = Facts()
    example, words = "", ("{", "}", " ")

    @dataclass(frozen=True)
    class Options:
        """`whitespace`: may stand between values."""

        whitespace: bool = True

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        if text:
            raise RequestError(f"constraint 'json_object' got {text!r:.40}; leave the text out, or use json_schema.")
        schema, how = '{"type": "object"}', self.options.whitespace
        return compiled(
            "json_object", self.setup, lambda: LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": how})
        )
