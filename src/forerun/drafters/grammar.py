"""Draft the tokens about which a request's constraint leaves no choice; they are nearly free, and mostly right.

Where only one token is allowed the target must write it. Where the text that comes next is certain but not how it is
cut into tokens, the tokenizer's own way is guessed.
Does not: draft anything for a request without a constraint; combine it with others by `several`.
"""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


class GrammarDrafter(SoloDrafter):
    """Forced tokens as a chain."""

    facts = Facts(paper="2501.10868", ahead=True, evidence="docs/results/README.md#schemas")

    @dataclass(frozen=True)
    class Options:
        """At most `width` tokens."""

        width: int = 16

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def propose_one(self, context: Context, budget: int) -> Draft:
        if context.guide is None:
            return _NOTHING
        return Draft.chain(context.guide.forced(context.ahead, min(budget, self.options.width)), "grammar")
