"""A JSON value that is valid by a JSON Schema (Geng et al. 2025, 2501.10868).

Does not: check formats that llguidance does not know, or fetch schemas from elsewhere: such a schema is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from forerun.constraints.contract import Compiler, within
from forerun.grammars import compiled, grammar_of
from forerun.guide import Matcher
from forerun.types import Facts, Setup


class JsonSchemaCompiler(Compiler):
    """Text: the schema."""

    facts = Facts(keys=("jsonschemabench",), paper="2501.10868", evidence="docs/results/README.md#schemas")
    example, words = '{"enum": [1, 12, 21]}', ("1", "2", "12")

    @dataclass(frozen=True)
    class Options:
        """`whitespace`: a space, or a line break and its indentation, may stand between values.

        `lenient`: keywords without support are ignored, and not refused.
        """

        whitespace: bool = True
        lenient: bool = False
        most: int = 65_536  # characters of the schema

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        text, o = within("json_schema", text, self.options.most), self.options
        return compiled("json_schema", self.setup, lambda: grammar_of(text, whitespace=o.whitespace, lenient=o.lenient))
