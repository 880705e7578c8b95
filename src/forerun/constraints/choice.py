"""One of a few texts.

Does not: prefer one of them: tokens are drawn as ever, so that the likeliest beginning wins and not the likeliest text.
"""

from collections.abc import Callable
from dataclasses import dataclass

from forerun.constraints.contract import Compiler, listed, within
from forerun.guide import Matcher
from forerun.types import Facts, Setup
from forerun.walk import ByteRules, Walk, letters, trie


class ChoiceCompiler(Compiler):
    """Text: the texts with commas between, or a JSON list of them where these have commas."""

    facts = Facts()
    example = "ab,abc,ca"

    @dataclass(frozen=True)
    class Options:
        """`most` characters of all together."""

        most: int = 16_384

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.setup = options, setup

    def compile(self, text: str) -> Callable[[], Matcher]:
        words = listed("choice", within("choice", text, self.options.most))
        spelling, vocab = self.setup.open_spelling(""), self.setup.vocab
        rules = ByteRules(*trie(words), letters(spelling, vocab), vocab)
        return lambda: Walk(rules)
