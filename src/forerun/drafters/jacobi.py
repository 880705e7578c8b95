"""A window of tokens is guessed at once, and every pass of the target renews all guesses (2305.10427; SJD 2410.01699).

Fixed-point iteration: what the target says behind the guesses of one pass are the guesses of the next. The window
slides with the text (Jacobi), or stays until all of it is written (`blocks`, Gauss-Seidel between blocks), or is given
up after so many tokens (`until`, hybrid). Where a request samples, guesses are drawn anew from what the last pass said
of their position, which is the q they are judged by. `forerun train consistency` makes a target guess well this way.
Does not: guess before the first pass (the window begins with the text's last token); pad with a token of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.drafters.contract import SoloDrafter
from forerun.drafting.ahead import Window
from forerun.drafting.purse import Purse
from forerun.errors import ConfigError
from forerun.types import Context, Draft, Facts, Need, Outcome, Setup

_NOTHING = Draft()


@dataclass(eq=False, slots=True)
class _State:
    purse: Purse
    window: Window = field(default_factory=Window)
    end: int = 0  # of the block, in tokens of the whole text


class JacobiDrafter(SoloDrafter):
    """The target's own parallel guesses."""

    facts = Facts(
        keys=("jacobi", "cllm"),
        needs=frozenset({Need.LOGITS}),
        draws=True,
        paper="2305.10427",
        evidence="docs/results/README.md#parallel-greedy",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`width` of the window; `draw`: draw where the request samples.

        `price`: steps that a node costs, 0.03 or more on a CPU; 0: never rest.
        """

        width: int = 4
        blocks: bool = False
        until: int = 0
        draw: bool = True
        price: float = 0.01

        def __post_init__(self) -> None:
            if self.width < 1 or self.until < 0 or not self.price >= 0:
                told = f"width is {self.width}, until {self.until} and price {self.price}"
                raise ConfigError(f"drafter 'jacobi': {told}; give a width of at least 1, the others of at least 0.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.eos = options, setup.eos

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(width=3)

    def start(self, context: Context) -> _State:
        return _State(Purse(self.options.price))

    def propose_one(self, context: Context, budget: int) -> Draft:
        state: _State = context.state
        length, options = len(context.tokens), self.options
        if state.purse.rests() or 0 < options.until <= length - context.prompt_length:
            return _NOTHING
        if state.end <= length:
            state.end = length + options.width
        size = state.end - length if options.blocks else options.width
        return state.purse.pay(state.window.draft(context, min(size, budget), "jacobi"))

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            context.state.window.advance(context, outcome, self.eos, drawn=self.options.draw)
            context.state.purse.settle(outcome)
