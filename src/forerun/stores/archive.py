"""Earlier outputs of every scope in suffix automata, within so much room; with a draft store they outlive the engine.

Does not: show one scope what another wrote; learn from a request before it ends; forget less than a whole volume.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.errors import ConfigError
from forerun.kernels.automaton import ROOT, START, Automaton, Match, automaton
from forerun.stores.shelf import Shelf, Texts
from forerun.stores.tokenfile import Tokens
from forerun.types import Context

PARTS = 4  # volumes that the room has at least; one is forgotten at a time
LEAD = 32  # tokens of the prompt that are kept before an output, so that its first token has a context
REACH = 64  # tokens of a prompt that are matched against earlier outputs


def check_room(room: int, who: str) -> None:
    """ConfigError for less than anything could be kept in."""
    if room < PARTS:
        raise ConfigError(f"{who} has room={room}; give at least {PARTS}.")


@dataclass(eq=False)
class Volume:
    """Texts that are matched together, and forgotten together."""

    scope: str = ""
    automaton: Automaton = field(default_factory=automaton)
    texts: list[Tokens] = field(default_factory=list)
    size: int = 0
    used: int = 0


class Archive:
    """Earlier outputs, at most `room` tokens in all; what no draft came from for longest is forgotten first."""

    def __init__(self, room: int, shelf: Shelf | None = None) -> None:
        self.room, self.size, self.clock = room, 0, 0
        self.shelf = shelf
        self._volumes: dict[str, list[Volume]] = {}
        if shelf is not None:
            for scope, texts in shelf.open(room).items():
                for text in texts:
                    self.add(scope, text)
            weakref.finalize(self, _keep, shelf, self._volumes)

    def of(self, scope: str) -> Sequence[Volume]:
        """What a scope may be shown."""
        return self._volumes.get(scope, ())

    def use(self, volume: Volume) -> None:
        """A draft came from it."""
        volume.used = self.clock

    def learn(self, context: Context) -> None:
        """The output of a request that ended, and the end of its prompt."""
        if len(context.tokens) > context.prompt_length:
            self.add(context.scope, np.array(context.tokens[max(context.prompt_length - LEAD, 0) :], np.int32))
            if self.shelf is not None:
                self.shelf.save_soon(self.texts)

    def add(self, scope: str, tokens: Tokens) -> None:
        """One more output."""
        self.clock += 1
        part = self.room // PARTS
        tokens = tokens[-part:]
        mine = self._volumes.setdefault(scope, [])
        if not mine or mine[-1].size + len(tokens) > part:
            mine.append(Volume(scope))
        volume = mine[-1]
        volume.used = self.clock
        while self.size + len(tokens) > self.room:
            self._forget(volume)
        volume.automaton.extend(ROOT, tokens.tolist())
        volume.texts.append(tokens)
        volume.size += len(tokens)
        self.size += len(tokens)

    def _forget(self, but: Volume) -> None:
        every = (volume for mine in self._volumes.values() for volume in mine if volume is not but)
        oldest = min(every, key=lambda volume: volume.used)
        self._volumes[oldest.scope].remove(oldest)
        if not self._volumes[oldest.scope]:
            del self._volumes[oldest.scope]
        self.size -= oldest.size

    def texts(self) -> Texts:
        """Everything, to be saved."""
        return _texts(self._volumes)


@dataclass(eq=False, slots=True)
class Place:
    """One request's own automaton, and where its text stands in the volumes."""

    own: Automaton = field(default_factory=automaton)
    end: int = ROOT
    known: int = 0
    matches: dict[Volume, Match] = field(default_factory=dict)

    def read(self, tokens: Sequence[int], volumes: Sequence[Volume]) -> None:
        """What came since the last draft."""
        new = tokens[self.known :]
        self.end = self.own.extend(self.end, new)
        self.matches = {
            volume: volume.automaton.follow(self.matches[volume], new)
            if volume in self.matches
            else volume.automaton.follow(START, tokens[-REACH:])
            for volume in volumes
        }
        self.known = len(tokens)


def _texts(volumes: dict[str, list[Volume]]) -> Texts:
    return {scope: [text for volume in mine for text in volume.texts] for scope, mine in volumes.items()}


def _keep(shelf: Shelf, volumes: dict[str, list[Volume]]) -> None:
    """The engine is gone."""
    shelf.try_save(_texts(volumes))
