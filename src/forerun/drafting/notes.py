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

HELD, READ = 2.5, 5.0  # steps that one with drafts costs at most, or it was held up; and the first, which reads texts
SLOW = 1.2  # times as long as such passes take, at most, is one held against drafts; they are held up without as well
LATE = 4.0  # times as long as others, at most, drafts take that read a new text: some do as long as new ones come


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
        return self.rows == self.requests + sum([len(draft.tokens) for draft in self.drafts])


def light(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts without what they were drawn from, which may be a vocabulary per node."""
    return [draft if draft.q is None else replace(draft, q=None) for draft in drafts]


def learn_times(notes: Sequence[Note], toll: Toll, passes: Passes) -> None:
    """Steps that should have taken about the same time are learnt from together: their rows are of one size.

    Drafts have their price by how many were asked for, though some come out empty. Where all do, it says nothing of
    what others add.
    """
    alike = defaultdict[tuple[int, int, int, int, bool, bool], list[Note]](list)
    for note in notes:
        asked = len([share for share in note.shares.values() if share])
        longest = max([note.shares.get(number, 0) for number in note.made], default=0)
        if note.settled and (note.timed or longest):
            size, drafts = note.rows.bit_length(), note.rows > note.requests
            alike[note.requests, asked, longest, size, drafts, note.timed].append(note)
    seen = list[Seen]()
    for (requests, asked, longest, _, drafts, timed), steps in alike.items():
        seconds, around = typical([one.drafting for one in steps], LATE), typical([one.around for one in steps])
        rows = round(sum([one.rows for one in steps]) / len(steps))
        seen.append(Seen(rows, typical([one.running for one in steps]), drafts, len(steps)))
        if longest and timed:
            toll.drafted(requests, asked, longest, seconds, around, len(steps))
        elif not asked:
            toll.rested(requests, seconds + around, len(steps))
    passes.learn(*seen)


def costs(notes: Sequence[Note], thought: float, toll: Toll, passes: Passes) -> list[float]:
    """What the drafts of each step cost for which these speak, in steps without; the first bears seconds of thought.

    Beside its pass, a step that reads a prompt as well is thought to take as much longer as others do.
    """
    longer = [note.around - toll.without(note.requests) for note in notes if note.settled]
    usual = sum(longer) / len(longer) if longer else 0.0
    found = [one for note in notes for one in [_cost(note, usual, toll, passes)] * note.steps]
    found[0] += thought / _step(notes[0], toll, passes)
    return found


def _cost(note: Note, usual: float, toll: Toll, passes: Passes) -> float:
    around = note.around - toll.without(note.requests) if note.settled else usual
    usually = passes.of(note.rows)
    running = min(note.running, SLOW * usually) if note.settled else usually
    rows = running - passes.of(note.rows - sum(map(len, note.drafts)))
    most = HELD if note.timed or not toll.warm else READ  # the very first take long for other reasons
    return min((note.drafting + around + rows) / _step(note, toll, passes), most)


def _step(note: Note, toll: Toll, passes: Passes) -> float:
    """Seconds of one without drafts."""
    return toll.without(note.requests) + passes.of(note.requests)
