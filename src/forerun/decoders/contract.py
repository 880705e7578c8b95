"""What a decoder is: what one step of one request does, from pending tokens to committed ones.

`plan` says what the target must run, `commit` judges what came back. Both see all requests of the step.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.drafters.contract import Drafter
from forerun.member import Member
from forerun.sampling import Rows
from forerun.sheet import Answers, Sheet
from forerun.types import Context, Draft, Output, Turn, Work
from forerun.verifiers.contract import Verifier


@dataclass(frozen=True, slots=True)
class Parts:
    """What the engine hands to a decoder."""

    drafter: Drafter
    verifier: Verifier
    eos: tuple[int, ...]
    far: bool = False  # logits lie on a device: what is asked of them comes with the pass


@dataclass(frozen=True, slots=True)
class Seat:
    """One request in one step."""

    context: Context  # context.state is the drafter's
    slot: int
    pending: tuple[int, ...]  # committed tokens to run now
    last: bool  # nothing stays pending: the next token can be judged
    budget: int  # nodes that may be drafted; 0 unless `last`


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs for one request in this step, and what was drafted for it."""

    work: Work
    draft: Draft
    sheet: Sheet | None = None  # what its work asks of the logits

    def target(self, output: Output, context: Context, eos: tuple[int, ...]) -> Rows | Answers:
        """p after every node of the draft. RequestError where bans leave no token to draw."""
        if self.sheet is not None and output.answers is not None:
            return self.sheet.read(output.answers)
        return Rows(output, context, self.draft, eos)


class Decoder(Member):
    """One step of every request."""

    parts: Parts

    def sheet(self, seat: Seat, draft: Draft) -> Sheet | None:
        """What the target is asked about a draft, where that saves a transfer."""
        if not (self.parts.far and seat.last):
            return None
        sheet = Sheet(seat.context, draft, self.parts.eos)
        return sheet if sheet.worthwhile else None

    @abstractmethod
    def __init__(self, options: Any, parts: Parts) -> None: ...  # noqa: ANN401 - the member's own Options

    @abstractmethod
    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """One Work per seat; its first rows are the pending tokens."""

    @abstractmethod
    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        """What became of each. A seat that is not `last` yields no tokens."""
