"""Copy what followed the latest occurrence of the last gamma tokens, anywhere in the chat (2502.08923).

One hash table leads from gamma tokens to the place behind them; a proposal is one look-up and one copy, however long
the chat.
Does not: try shorter matches (`ngram` does); propose more than one branch; look into other chats.
"""

from dataclasses import dataclass, field

from forerun.drafters.contract import SoloDrafter
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()


@dataclass(eq=False, slots=True)
class _Chat:
    """Places behind the gamma tokens that they follow, the latest of each."""

    known: int  # the place up to which they are in the table
    behind: dict[tuple[int, ...], int] = field(default_factory=dict)


class CopySpecDrafter(SoloDrafter):
    """The longest copy for one exact match."""

    facts = Facts(keys=("copyspec",), paper="2502.08923", evidence="docs/results/README.md#drafts")

    @dataclass(frozen=True)
    class Options:
        """`width` tokens are copied after a match of `gamma`."""

        gamma: int = 3
        width: int = 10

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(gamma=1, width=2)

    def start(self, context: Context) -> _Chat:
        return _Chat(self.options.gamma)

    def propose_one(self, context: Context, budget: int) -> Draft:
        tokens, gamma, chat = context.tokens, self.options.gamma, context.state
        for place in range(chat.known, len(tokens)):  # the text's own end has nothing behind it yet
            chat.behind[tuple(tokens[place - gamma : place])] = place
        chat.known = max(len(tokens), gamma)
        place = chat.behind.get(tuple(tokens[-gamma:]))
        if place is None:
            return _NOTHING
        return Draft.chain(tokens[place : place + min(budget, self.options.width)], "copyspec")
