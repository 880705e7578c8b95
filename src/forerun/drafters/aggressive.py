"""Copy on from the input at the place where the output stands in it: input-guided aggressive decoding (2205.10350).

For outputs that are their input with changes: corrected grammar, an edited file, a simpler text. The input is the
prompt. After a mismatch the copy goes on behind the replaced token, and where that fails, behind the next place at
which the last `match` tokens stand, so that repeated lines come in the order of the input.
Does not: copy from its own output; find the beginning of the input in a longer prompt before `match` tokens are
written. The paper's other half, a non-autoregressive model for inputs unlike their outputs, is not built.
"""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.align import Follower, Source
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


class AggressiveDrafter(SoloDrafter):
    """The prompt, from where the output stands in it."""

    facts = Facts(keys=("aggressive",), paper="2205.10350", evidence="docs/results/README.md#drafts")

    @dataclass(frozen=True)
    class Options:
        """`width` tokens of a draft; it is given up after `patience` wrong tokens in a row, until `match` are right."""

        width: int = 32
        match: int = 2
        patience: int = 2

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(width=2, match=1)

    def start(self, context: Context) -> Follower:
        lost = self.options.patience + 1  # nothing of the input is written yet
        return Follower(Source(context.tokens, self.options.match), context.prompt_length, wrong=lost)

    def propose_one(self, context: Context, budget: int) -> Draft:
        follower: Follower = context.state
        follower.read(context.tokens)
        if follower.wrong > self.options.patience:
            return _NOTHING
        return Draft.chain(follower.expected(min(budget, self.options.width)), "aggressive")
