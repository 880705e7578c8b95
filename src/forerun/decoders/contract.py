"""What a decoder is: what one step of one request does, from pending tokens to committed ones.

`plan` says what the target must run, `commit` judges what came back. Both see all requests of the step.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, Protocol, final

import torch

from forerun.drafters.contract import Drafter
from forerun.member import Member
from forerun.reader import Page
from forerun.sampling import Rows, States
from forerun.sheet import Ahead, Answers, Sheet, lot
from forerun.types import Context, Draft, Lot, Output, Setup, Turn, Work
from forerun.verifiers.contract import Verifier


@dataclass(frozen=True, slots=True)
class Parts:
    """What the engine hands to a decoder."""

    drafter: Drafter
    verifier: Verifier
    setup: Setup
    ahead: Ahead = Ahead.NOTHING

    @property
    def eos(self) -> tuple[int, ...]:
        return self.setup.eos


class Seat(NamedTuple):
    """One request in one step."""

    context: Context  # context.state is the drafter's
    slot: int
    pending: tuple[int, ...]  # committed tokens to run now
    last: bool  # nothing stays pending: the next token can be judged
    budget: int  # nodes that may be drafted; 0 unless `last`
    state: Any = None  # what the decoder's own `start` returned


class Plan(NamedTuple):
    """What runs for one request in this step, and what was drafted for it."""

    work: Work
    draft: Draft
    sheet: Sheet | None = None  # what its work asks of the logits

    def target(self, output: Output, context: Context, eos: tuple[int, ...]) -> Rows | Answers:
        """p after every node of the draft. RequestError where bans leave no token to draw."""
        if self.sheet is not None and output.answers is not None:
            answers = self.sheet.read(output.answers)
            answers.states = States(output.hidden, len(self.draft))
            return answers
        return Rows(output, context, self.draft, eos)


class Decoder(Member):
    """One step of every request."""

    parts: Parts

    def asks(self, seat: Seat, draft: Draft) -> tuple[Sheet | None, Lot | None]:
        """What the pass is asked about a draft: a sheet, where that saves a transfer, or draws, where it makes them.

        Nothing where the best token of every row says it all.
        """
        context, ahead, eos = seat.context, self.parts.ahead, self.parts.eos
        if not seat.last or context.sampling.best:
            return None, None
        sheet = Sheet(context, draft, eos) if ahead is Ahead.SHEETS else None
        known = ahead is Ahead.DRAWS and (not draft.tokens or self.parts.verifier.facts.coupled)
        return sheet if sheet and sheet.worthwhile else None, lot(context, draft, eos) if known else None

    @abstractmethod
    def __init__(self, options: Any, parts: Parts) -> None: ...  # noqa: ANN401 - the member's own Options

    def start(self, context: Context) -> Any:  # noqa: ANN401 - whatever the decoder needs per request
        """A new request; what this returns is `seat.state` from now on."""
        return None

    def nodes(self, state: Any) -> int | None:  # noqa: ANN401
        """Of a decoder that searches: nodes that its next step is for, whatever a planner would guess; else None."""
        return None

    def pause(self, state: Any) -> None:  # noqa: ANN401
        """The request lost its place for a while: give back what is scarce, such as a slot of a reader's cache."""

    def resume(self, state: Any) -> None:  # noqa: ANN401
        """It has a place again: take what `pause` gave back."""

    def stop(self, state: Any) -> None:  # noqa: ANN401
        """The request ended; give back what `start` took."""

    @abstractmethod
    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        """One Work per seat; its first rows are the pending tokens."""

    @abstractmethod
    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        """What became of each. A seat that is not `last` yields no tokens."""


@dataclass(eq=False)
class Voices:
    """What a decoder over several models keeps of one request."""

    slots: tuple[int, ...]  # of every reader
    memory: Any = None  # of the row by which the last token was judged


class Hears(Protocol):
    """A further model, as `Reader` is one: it says something of every token of the target's, [1 + nodes, vocab]."""

    def open(self) -> int: ...
    def close(self, slot: int) -> None: ...
    def read(self, pages: Sequence[Page]) -> list[torch.Tensor]: ...
    def keep(self, page: Page, path: Sequence[int]) -> None: ...


class FusedDecoder(Decoder):
    """Lifts a law over several models: `inner` drafts and judges as ever, by the logits that `fuse` makes of all."""

    inner: Decoder
    readers: Sequence[Hears]

    @abstractmethod
    def fuse(self, rows: Sequence[torch.Tensor], draft: Draft, memory: Any) -> tuple[torch.Tensor, Sequence[Any]]:  # noqa: ANN401
        """Logits [1 + nodes, vocab] of the target and of every reader -> those of the law, and each row's memory.

        `memory` is that of the row by which the last committed token was judged; None at the start.
        """

    @final
    def start(self, context: Context) -> Voices:
        return Voices(tuple(reader.open() for reader in self.readers))

    def resume(self, state: Voices) -> None:
        state.slots = tuple(reader.open() for reader in self.readers)

    def pause(self, state: Voices) -> None:
        self.stop(state)

    @final
    def stop(self, state: Voices) -> None:
        for reader, slot in zip(self.readers, state.slots, strict=False):  # none while it is paused
            reader.close(slot)
        state.slots = ()

    @final
    def plan(self, seats: Sequence[Seat]) -> list[Plan]:
        return self.inner.plan(seats)

    @final
    def commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        due = [i for i, seat in enumerate(seats) if seat.last]
        pages = [
            [Page(seats[i].state.slots[k], seats[i].context.tokens, plans[i].draft, outputs[i].logits) for i in due]
            for k in range(len(self.readers))
        ]
        heard = [reader.read(page) for reader, page in zip(self.readers, pages, strict=True)]
        fused, memories = list(outputs), dict[int, Sequence[Any]]()
        for n, i in enumerate(due):
            rows = [outputs[i].logits, *(logits[n] for logits in heard)]
            law, memories[i] = self.fuse(rows, plans[i].draft, seats[i].state.memory)
            best, peak = (tuple(found.tolist()) for found in reversed(law.max(-1)))
            fused[i] = outputs[i]._replace(held=law, best=best, peak=peak, mass=None)
        turns = self._judge(seats, plans, fused)
        for n, i in enumerate(due):
            pending = len(seats[i].pending)
            path = [row - pending for row in turns[i].keep if row >= pending]
            for reader, page in zip(self.readers, pages, strict=True):
                reader.keep(page[n], path)
            seats[i].state.memory = memories[i][path[-1] + 1 if path else 0]
        return turns

    def _judge(self, seats: Sequence[Seat], plans: Sequence[Plan], fused: Sequence[Output]) -> list[Turn]:
        """The turns of `inner`; a seat whose logits another model broke ends alone."""
        broken = Turn((), (), error="another model returned logits that are not finite; check its weights and dtype.")
        sound = [i for i, output in enumerate(fused) if all(map(isfinite, output.peak))]
        turns = [broken] * len(seats)
        judged = self.inner.commit([seats[i] for i in sound], [plans[i] for i in sound], [fused[i] for i in sound])
        for i, turn in zip(sound, judged, strict=True):
            turns[i] = turn
        return turns
