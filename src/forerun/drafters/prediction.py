"""Follow the output that the caller expects: an edited file, a corrected text (OpenAI 2024, predicted outputs).

`LLM.generate(..., prediction=text)` and `forerun generate --prediction FILE` give it. After an edit the draft goes on
behind the replaced token, and where that fails, behind the next place at which the last `match` tokens stand.
Does not: draft for a request without a prediction; shorten what does not depend on it.
"""

from dataclasses import dataclass

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.align import Follower, Source
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


class PredictionDrafter(SoloDrafter):
    """A given text, from where the output stands in it."""

    facts = Facts(paper="OpenAI 2024, predicted outputs", evidence="docs/results/README.md#drafts")

    @dataclass(frozen=True)
    class Options:
        """`width` tokens of a draft; it is given up after `patience` wrong tokens in a row, until `match` are right."""

        width: int = 32
        match: int = 2
        patience: int = 2

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    def start(self, context: Context) -> Follower:
        return Follower(Source(context.prediction, self.options.match), context.prompt_length)

    def propose_one(self, context: Context, budget: int) -> Draft:
        follower: Follower = context.state
        follower.read(context.tokens)
        if follower.wrong > self.options.patience:
            return _NOTHING
        return Draft.chain(follower.expected(min(budget, self.options.width)), "prediction")
