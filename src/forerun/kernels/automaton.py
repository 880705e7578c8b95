"""A suffix automaton of many sequences (Blumer et al. 1985), with counts, grown token by token.

A state is a set of contexts that ended at the same places: those longer than its link's, up to its own length. So an
occurrence of a context is counted once for all contexts of its state, and a match of any length takes O(1) per token.
`automaton()` is the compiled one where the extension is there; `PlainAutomaton` does the same, to the last guess.
Does not: forget; whoever bounds memory drops whole automata.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, cast

from forerun.kernels import native

ROOT, NONE = 0, -1
COUNTED = 64  # contexts that one token adds to, the longest first; more there are in periodic text only
SEEN = 64  # continuations of a context that are looked at, in the order in which they came up
TRIED = 8  # contexts that a draft is tried with, the longest first

Match = tuple[int, int]  # a state, and the length of the longest suffix that occurs; the state holds it
START: Match = (ROOT, 0)


# A tree: tokens, parents, the chance of a node given its parent, and the expected number of accepted nodes.
Guess = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float]


class Automaton(Protocol):
    """What drafters use; a sequence is continued from the state in which it ended, a new one from ROOT."""

    @property
    def states(self) -> int:
        """How many there are."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory in use; 0 where it is not known."""
        ...

    def extend(self, last: int, tokens: Sequence[int], /) -> int:
        """Continue the sequence that ended in state `last`; where it ends now."""
        ...

    def follow(self, at: Match, tokens: Sequence[int], /) -> Match:
        """The longest suffix that occurs, after `tokens` have followed on one that did."""
        ...

    def earlier(self, last: int, /) -> Match:
        """The longest suffix of a sequence's end that occurs elsewhere too."""
        ...

    def tree(self, at: Match, budget: int, factor: float, least: float, /) -> Guess:
        """The likeliest paths, of at most factor * length nodes, after that suffix of the match that promises most."""
        ...

    def chain(self, at: Match, budget: int, latest: bool, /) -> Guess:  # noqa: FBT001 - as the compiled one has it
        """One continuation: that of the latest occurrence, or the most frequent token after token."""
        ...


def automaton() -> Automaton:
    """An empty one."""
    module = native.load()
    return cast("Automaton", module.Automaton()) if module is not None else PlainAutomaton()


@dataclass(slots=True)
class _State:
    length: int = 0
    link: int = NONE
    count: int = 0
    time: int = 0  # of the last occurrence
    edges: dict[int, int] = field(default_factory=dict)  # token -> state, in the order in which they came up


class PlainAutomaton:
    """The reference."""

    nbytes = 0

    def __init__(self) -> None:
        self._states, self._clock = [_State()], 0

    @property
    def states(self) -> int:
        return len(self._states)

    def extend(self, last: int, tokens: Sequence[int]) -> int:
        for token in tokens:
            last = self._add(last, token)
            self._count(last)
        return last

    def _add(self, last: int, token: int) -> int:
        states = self._states
        if token in states[last].edges:  # another sequence went this way
            return self._next(last, token)
        states.append(_State(states[last].length + 1))
        state, at = len(states) - 1, last
        while at != NONE and token not in states[at].edges:
            states[at].edges[token] = state
            at = states[at].link
        states[state].link = self._next(at, token) if at != NONE else ROOT
        return state

    def _next(self, at: int, token: int) -> int:
        """The state whose longest context is that of `at` and the token; made where there is none."""
        states, to = self._states, self._states[at].edges[token]
        if states[to].length == states[at].length + 1:
            return to
        whole, part = states[to], len(states)
        states.append(_State(states[at].length + 1, whole.link, whole.count, whole.time, dict(whole.edges)))
        whole.link = part
        while at != NONE and states[at].edges.get(token) == to:
            states[at].edges[token] = part
            at = states[at].link
        return part

    def _count(self, at: int) -> None:
        self._clock += 1
        for _ in range(COUNTED):
            if at == ROOT:
                return
            state = self._states[at]
            state.count, state.time, at = state.count + 1, self._clock, state.link

    def _settle(self, at: Match) -> Match:
        """The state that holds the context now: it may have been split since."""
        state, length = at
        while state != ROOT and length <= self._states[self._states[state].link].length:
            state = self._states[state].link
        return state, length

    def follow(self, at: Match, tokens: Sequence[int]) -> Match:
        state, length = self._settle(at)
        for token in tokens:
            while state != ROOT and token not in self._states[state].edges:
                state = self._states[state].link
                length = self._states[state].length
            to = self._states[state].edges.get(token)
            state, length = (to, length + 1) if to is not None else START
        return state, length

    def earlier(self, last: int) -> Match:
        if last == ROOT:
            return START
        link = self._states[last].link
        return link, self._states[link].length

    def tree(self, at: Match, budget: int, factor: float, least: float) -> Guess:
        best: Guess = (), (), (), 0.0
        state, length = self._settle(at)
        for _ in range(TRIED):
            room = int(min(budget, factor * length))
            if state == ROOT or room <= best[-1]:  # no node is worth more than one token
                break
            found = self._grow(state, room, least)
            best = found if found[-1] > best[-1] else best
            state, length = self.earlier(state)
        return best

    def _children(self, state: int) -> list[tuple[float, int, int, int]]:
        """Chance, time, token and state of what followed, or of what followed the longest part of it that went on."""
        while state != ROOT and not self._states[state].edges:
            state = self._states[state].link
        if state == ROOT:
            return []
        found = [(token, to, self._states[to]) for token, to in islice(self._states[state].edges.items(), SEEN)]
        total = sum(one.count for _, _, one in found)
        return [(one.count / total, one.time, token, to) for token, to, one in found if one.count]

    def _grow(self, state: int, budget: int, least: float) -> Guess:
        tokens, parents, chances, score = list[int](), list[int](), list[float](), 0.0
        pushed, node, reach = 0, NONE, 1.0
        waiting = list[tuple[float, int, int, int, int, int, float]]()
        while True:
            for chance, time, token, to in self._children(state):
                if reach * chance >= least:
                    pushed += 1
                    heapq.heappush(waiting, (-reach * chance, -time, pushed, token, to, node, chance))
            if not waiting or len(tokens) == budget:
                return tuple(tokens), tuple(parents), tuple(chances), score
            negative, _, _, token, state, parent, chance = heapq.heappop(waiting)
            reach, node = -negative, len(tokens)
            tokens.append(token)
            parents.append(parent)
            chances.append(chance)
            score += reach

    def chain(self, at: Match, budget: int, latest: bool) -> Guess:  # noqa: FBT001
        tokens, chances, score, reach = list[int](), list[float](), 0.0, 1.0
        state, _ = self._settle(at)
        while len(tokens) < budget:
            children = self._children(state)
            if not children:
                break
            chance, _, token, state = max(children, key=lambda one: (one[1] if latest else one[0], one[1]))
            reach *= chance
            tokens.append(token)
            chances.append(chance)
            score += reach
        return tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(chances), score
