"""A glance of the future: a Jacobi window whose size changes with the position (FastCoT, 2311.08263).

Approximate tokens stand behind the text in every pass, as many as `sizes` says for the part of the text that is written
now, and each is renewed by what stands before it. Whatever comes after them in the window is read with them as its
context; the text itself never is: each token is judged behind exact ones only.
Does not: end a rationale early and answer from approximate tokens, as the paper does to save the last steps; that
changes the answer, and here a draft never does. What is left of the paper is its window.
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


class FastCotDrafter(SoloDrafter):
    """A window that widens or narrows along the text."""

    facts = Facts(
        keys=("fastcot",),
        paper="2311.08263",
        needs=frozenset({Need.LOGITS}),
        draws=True,
        evidence="docs/results/README.md#parallel-greedy",
    )
    watches = False

    @dataclass(frozen=True)
    class Options:
        """`sizes` of the window, one after the other for `span` tokens each; the last one stays.

        `draw`: draw where the request samples; `price`: steps that a node costs, 0.03 or more on a CPU; 0: never rest.
        """

        sizes: tuple[int, ...] = (8, 6, 4)
        span: int = 32
        draw: bool = True
        price: float = 0.01

        def __post_init__(self) -> None:
            if not self.sizes or min(*self.sizes, self.span) < 1 or not self.price >= 0:
                told = f"sizes is {self.sizes}, span {self.span} and price {self.price}"
                raise ConfigError(f"drafter 'fastcot': {told}; give sizes and a span of at least 1, a price from 0 on.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.eos = options, setup.eos

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(sizes=(2, 3), span=2)

    def start(self, context: Context) -> _State:
        return _State(Purse(self.options.price))

    def propose_one(self, context: Context, budget: int) -> Draft:
        state: _State = context.state
        sizes = self.options.sizes
        if state.purse.rests():
            return _NOTHING
        part = (len(context.tokens) - context.prompt_length) // self.options.span
        size = sizes[min(part, len(sizes) - 1)]
        return state.purse.pay(state.window.draft(context, min(size, budget), "fastcot"))

    def observe(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        for context, outcome in zip(batch, outcomes, strict=True):
            context.state.window.advance(context, outcome, self.eos, drawn=self.options.draw)
            context.state.purse.settle(outcome)
