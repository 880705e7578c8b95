"""Scopes share alike: whoever was served least is next, by counters of virtual tokens (VTC, 2401.00588).

A token that was read costs 1, one that was written `written`. A scope that comes back starts where the least served
of those present stands, so that nobody saves up.
Does not: take slots away while there is memory; divide a scope's share among its requests, which are served in order.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup

REMEMBERED = 4096  # scopes without a request


class FairScheduler(Scheduler):
    """Decodes first; slots and prompts go to the scope that was served least."""

    facts = Facts(paper="2401.00588", stall_free=True, fair=True, evidence="docs/results/README.md#schedulers")

    @dataclass(frozen=True)
    class Options:
        """What a written token weighs, where one that is read weighs 1."""

        written: float = 2.0

        def __post_init__(self) -> None:
            if not self.written > 0:
                raise ConfigError(f"scheduler option 'written' is {self.written}; give a weight above 0.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self.served: dict[str, float] = {}  # scope -> what it was served, weighed
        self._present: dict[str, set[int]] = {}  # scope -> its requests; no empty ones
        self._told: dict[int, int] = {}  # request -> written tokens that were counted
        self._last = 0.0  # what the scope that left last was served

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        self._meet(waiting)
        lines = defaultdict[str, list[Candidate]](list)
        for c in sorted(waiting, key=lambda c: -c.arrival):
            lines[c.scope].append(c)
        heap = [(self.served[scope], line[-1].arrival, scope) for scope, line in lines.items()]
        heapify(heap)
        order: list[int] = []
        while heap:
            counted, _, scope = heap[0]
            c = lines[scope].pop()
            order.append(c.id)
            if lines[scope]:
                heapreplace(heap, (counted + c.pending, lines[scope][-1].arrival, scope))
            else:
                heappop(heap)
        return order

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        for c in running:
            self._count(c)
        picks = in_order(sorted(running, key=lambda c: (not c.decoding, self.served[c.scope], c.arrival)), room)
        reading = {c.id: c.scope for c in running if not c.decoding}
        for p in picks:
            if p.id in reading:
                self.served[reading[p.id]] += p.count
        return picks

    def victim(self, running: Sequence[Candidate], now: float) -> int:
        return max(running, key=lambda c: (self.served[c.scope], c.arrival)).id

    def ended(self, candidate: Candidate) -> None:
        if candidate.id not in self._told:
            return
        self._count(candidate)
        del self._told[candidate.id]
        scope, mine = candidate.scope, self._present[candidate.scope]
        mine.discard(candidate.id)
        if not mine:
            del self._present[scope]
            self._last = self.served.pop(scope)
            self.served[scope] = self._last
        if len(self.served) > REMEMBERED:
            gone = next((s for s in self.served if s not in self._present), None)
            self.served.pop(gone or "", None)

    def _count(self, c: Candidate) -> None:
        self._meet([c])
        self.served[c.scope] += self.options.written * (c.written - self._told[c.id])
        self._told[c.id] = c.written

    def _meet(self, candidates: Sequence[Candidate]) -> None:
        """Whoever comes into sight; a scope that was away starts no lower than those that are here."""
        for c in candidates:
            if c.id in self._told:
                continue
            if c.scope not in self._present:
                least = min((self.served[scope] for scope in self._present), default=self._last)
                self.served[c.scope] = max(self.served.get(c.scope, 0.0), least)
                self._present[c.scope] = set()
            self._present[c.scope].add(c.id)
            self._told[c.id] = 0
