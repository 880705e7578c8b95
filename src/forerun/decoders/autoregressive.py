"""One token per step, drawn from the target: the baseline of everything.

Does not: draft, whatever drafter is configured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.decoders.contract import Decoder, Parts, Plan, Seat, plain
from forerun.types import Draft, Facts, Output, Turn, Work

_NOTHING = Draft()


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
        last, sheet = (len(seat.pending) - 1,) if seat.last else (), self.sheet(seat, _NOTHING)
        return Plan(Work(seat.slot, seat.pending, logits=last, ask=sheet), _NOTHING, sheet)

    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        return [plain(*one, self.parts.eos) for one in zip(seats, plans, outputs, strict=True)]
