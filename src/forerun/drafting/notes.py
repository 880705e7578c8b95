"""What steps took, learnt from many of them at once: a single one says little, and looking at each takes its time.

Does not: know why drafts were made.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from forerun.drafting.passes import Passes, Seen
from forerun.drafting.toll import Toll, typical
from forerun.drafting.worth import Record
from forerun.types import Draft, Turn


class Note(NamedTuple):
    """One step; of those without drafts nothing is kept but times, and never what may be large: a context or a q."""

    requests: int
    ids: Sequence[int]  # theirs
    records: Sequence[Record]  # and what is known of each
    shares: Mapping[int, int]  # by request
    drafts: Sequence[Draft]
    turns: Sequence[Turn]
    made: Sequence[int]  # whose drafts had a node before they were cut
    timed: bool  # whether it took what such steps take as a rule
    steps: int  # for which it speaks
    drafting: float  # seconds
    running: float  # of the pass
    rows: int  # of it
    around: float  # seconds of all else

    @property
    def settled(self) -> bool:
        """Whether nobody's prompt was read."""
        return self.rows == self.requests + sum(map(len, self.drafts))


def light(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts without what they were drawn from, which may be a vocabulary per node."""
    return [draft if draft.q is None else replace(draft, q=None) for draft in drafts]


def learn_times(notes: Sequence[Note], toll: Toll, passes: Passes) -> None:
    """Steps that should have taken the same time are learnt from together.

    Drafts have their price by how many were asked for, though some come out empty. Where all do, it says nothing of
    what others add.
    """
    alike = defaultdict[tuple[int, int, int, int, bool], list[Note]](list)
    for note in notes:
        asked = sum(share > 0 for share in note.shares.values())
        longest = max([note.shares.get(number, 0) for number in note.made], default=0)
        if note.settled and (note.timed or longest):
            alike[note.requests, asked, longest, note.rows, note.timed].append(note)
    seen = list[Seen]()
    for (requests, asked, longest, rows, timed), steps in alike.items():
        seconds, around = typical([one.drafting for one in steps]), typical([one.around for one in steps])
        seen.append(Seen(rows, typical([one.running for one in steps]), rows > requests, len(steps)))
        if longest and timed:
            toll.drafted(requests, asked, longest, seconds, around, len(steps))
        elif not asked:
            toll.rested(requests, seconds + around, len(steps))
    passes.learn(*seen)


def costs(notes: Sequence[Note], toll: Toll, passes: Passes) -> list[float]:
    """What the drafts of each step cost for which these speak, in steps without."""
    return [one for note in notes for one in [_cost(note, toll, passes)] * note.steps]


def _cost(note: Note, toll: Toll, passes: Passes) -> float:
    without = toll.without(note.requests)
    around = note.around - without if note.settled else 0.0  # else a prompt's, too
    rows = passes.of(note.rows) - passes.of(note.rows - sum(map(len, note.drafts)))
    return (note.drafting + around + rows) / (without + passes.of(note.requests))
