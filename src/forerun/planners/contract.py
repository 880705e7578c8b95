"""What a planner is: how many nodes each request may draft in this step, and which of them are verified.

Zero is always allowed. What stays of a draft may depend on everything but the drawn token of the node in question: by
its `confidence`, which does not, a node may go with its descendants and its younger siblings.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, final

from forerun.member import Member
from forerun.types import Context, Draft, Outcome, Setup, Turn

Kept = TypeVar("Kept")
REMEMBERED = 4096  # requests


class Spent(NamedTuple):
    """Where the time of a step went, in seconds."""

    drafting: float
    running: float  # the target's pass
    rows: int  # of that pass
    around: float = 0.0  # the engine's other work, with the text of the step before; not the planner's own
    planning: float = 0.0  # the planner's, in `share`


class Planner(Member):
    """Shares the step's verification budget among requests."""

    hidden: tuple[int, ...] = ()  # layers of the target whose hidden states `see` wants to see

    @abstractmethod
    def __init__(self, options: Any, setup: Setup) -> None: ...  # noqa: ANN401 - the member's own Options

    @property
    def watches(self) -> bool:
        """Whether `see` must be shown steps in which nobody has a draft, too."""
        return type(self).see is not Planner.see

    @abstractmethod
    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        """Nodes per request; at most `room` in total. The engine cuts further where a text is about to end."""

    def cut(self, batch: Sequence[Context], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """What will be verified of drafts that were made within the shares; see `Draft.only`. Everything by default.

        Not asked where nobody has a draft.
        """
        return drafts

    def see(self, batch: Sequence[Context], outcomes: Sequence[Outcome]) -> None:
        """What the target's pass found, before `observe`; `context.tokens` still ends before the verdict's tokens."""

    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        """What became of the drafts of a step, of every request that wrote something: one or more of them.

        Does nothing unless it learns.
        """


def within(wishes: Sequence[int], room: int) -> list[int]:
    """Shares as wished for, in the order of the batch as far as the room suffices."""
    shares: list[int] = []
    for wish in wishes:
        shares.append(min(wish, room))
        room -= shares[-1]
    return shares


class Memory(Generic[Kept]):
    """What is kept of each request, of so many as came last."""

    def __init__(self, begin: Callable[[], Kept]) -> None:
        self._begin, self._held = begin, OrderedDict[int, Kept]()

    def of(self, context: Context) -> Kept:
        """A request's own; a new one where there is none."""
        if context.id not in self._held:
            self._held[context.id] = self._begin()
            if len(self._held) > REMEMBERED:
                self._held.popitem(last=False)
        return self._held[context.id]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one draft."""

    asked: int  # nodes that were wished for
    drafted: int
    depth: int
    accepted: int

    @property
    def whole(self) -> bool:
        """Whether everything was accepted that could have been."""
        return self.accepted == self.depth

    @property
    def full(self) -> bool:
        """Whether that was all that was wished for; a shorter draft does not say what a longer one would have been."""
        return self.whole and self.drafted >= self.asked

    @classmethod
    def of(cls, asked: int, turn: Turn) -> "Fate":
        """One turn that wrote something."""
        return cls(asked, turn.drafted, turn.depth, len(turn.emissions) - 1)


@dataclass(eq=False, slots=True)
class _Pace:
    """Of one request."""

    kept: Any
    asked: int = 0  # nodes, in the step that is under way


class SoloPlanner(Planner):
    """Lifts a rule that looks at one request at a time: its wish follows from what became of its own drafts."""

    @abstractmethod
    def start(self) -> Any:  # noqa: ANN401 - whatever the rule keeps of a request
        """What is kept of a new request."""

    @abstractmethod
    def wish(self, context: Context, kept: Any) -> int:  # noqa: ANN401
        """Nodes of the request's next draft."""

    @abstractmethod
    def learn(self, kept: Any, fate: Fate) -> None:  # noqa: ANN401
        """What became of a draft; not called where nothing was drafted."""

    @cached_property
    def _paces(self) -> Memory[_Pace]:
        return Memory(lambda: _Pace(self.start()))

    @final
    def kept(self, context: Context) -> Any:  # noqa: ANN401
        """What is kept of a request."""
        return self._paces.of(context).kept

    @final
    def share(self, batch: Sequence[Context], room: int) -> list[int]:
        paces = [self._paces.of(context) for context in batch]
        for context, pace in zip(batch, paces, strict=True):
            pace.asked = self.wish(context, pace.kept)
        return within([pace.asked for pace in paces], room)

    @final
    def observe(self, batch: Sequence[Context], drafts: Sequence[Draft], turns: Sequence[Turn], spent: Spent) -> None:
        for context, turn in zip(batch, turns, strict=True):
            pace = self._paces.of(context)
            if turn.drafted:
                self.learn(pace.kept, Fate.of(pace.asked, turn))
