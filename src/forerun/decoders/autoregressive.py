"""One token per step, drawn from the target: the baseline of everything.

Does not: draft, whatever drafter is configured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.decoders.contract import Decoder, Parts, Plan, Seat
from forerun.errors import RequestError
from forerun.kernels.turns import said
from forerun.rng import Purpose
from forerun.sampling import logprob
from forerun.types import Draft, Emission, Facts, Output, Turn, Work

_NOTHING = Draft()


def undrafted(
    seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output], eos: tuple[int, ...]
) -> list[Turn]:
    """The turns of seats for which nothing was drafted."""
    told = said(seats, plans, outputs)
    alone = zip(seats, plans, outputs, strict=True)
    return [(news and news[1]) or plain(*one, eos) for news, one in zip(told, alone, strict=True)]


def plain(seat: Seat, plan: Plan, output: Output, eos: tuple[int, ...]) -> Turn:
    """The turn of a seat for which nothing was drafted: one token of the target, drawn as every verifier draws it."""
    keep, context = tuple(range(len(seat.pending))), seat.context
    if not seat.last:
        return Turn((), keep)
    if context.sampling.best:
        token = output.best[0]
    elif output.drawn and output.drawn[0] is not None and context.guide is None:
        token = output.drawn[0].token
    else:
        try:
            p = plan.target(output, context, eos)[-1]
        except RequestError as problem:
            return Turn((), keep, error=str(problem))
        token = context.rng.categorical(p, Purpose.TARGET, 0)
    count = context.sampling.logprobs
    detail = logprob(output.logits[0], token, count) if count is not None else None
    return Turn((Emission(token, "target", detail),), keep)


class AutoregressiveDecoder(Decoder):
    """Plain decoding."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options: Options, parts: Parts) -> None:
        self.options, self.parts = options, parts

    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        return [self._plan(seat) for seat in seats]

    def _plan(self, seat: Seat) -> Plan:
        last, (sheet, lot) = (len(seat.pending) - 1,) if seat.last else (), self.asks(seat, _NOTHING)
        return Plan(Work(seat.slot, seat.pending, None, 0, last, (), None, sheet, lot), _NOTHING, sheet)

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        return undrafted(seats, plans, outputs, self.parts.eos)
