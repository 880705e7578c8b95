"""Draft nothing: plain decoding, through the code it is compared with.

Does not: make anything faster.
"""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


class NoDrafter(SoloDrafter):
    """Always an empty draft."""

    facts = Facts(silent=True)

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def propose_one(self, context: Context, budget: int) -> Draft:
        return _NOTHING
