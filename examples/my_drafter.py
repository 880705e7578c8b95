"""A drafter of your own: one class, proved by the contract kit before it is used."""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.testing import check
from forerun.types import Context, Draft, Facts, Setup


class RepeatDrafter(SoloDrafter):
    """Guess that the last token comes again.

    Does not: look at anything else.
    """

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """`width`: how often."""

        width: int = 3

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def propose_one(self, context: Context, budget: int) -> Draft:
        return Draft.chain([context.tokens[-1]] * min(budget, self.options.width), "repeat")


check(RepeatDrafter)
print("a draft is a draft, exact stays exact, rejection leaves no trace, cancelling is free")
