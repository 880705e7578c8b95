"""Continue as this text, or an earlier one of its scope, did after the same tokens (SuffixDecoding, 2411.04975).

Two kinds of suffix automata are looked up: the request's own, and those of earlier outputs. A context that occurred n
times and went on with a token c times gives it the chance c / n; the likeliest paths become a tree (alg. 1), of at most
`factor` nodes per matched token, so that long matches draft far and short ones little. The tree with the largest
expected number of accepted nodes is the draft. With `--draft-store` earlier outputs outlive the engine.
Does not: show one scope what another wrote; learn from a request before it ends; tell a seed's text apart from its
past (only a coupled verifier, as `match`, writes the same text again).
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.drafters.contract import SoloDrafter
from forerun.errors import ConfigError
from forerun.kernels.automaton import ROOT, START, Automaton, Guess, Match, automaton
from forerun.shelf import Shelf, Texts
from forerun.tokenfile import Tokens
from forerun.types import Context, Draft, Facts, Setup

_NOTHING = Draft()
PARTS = 4  # volumes that the room has at least; one is forgotten at a time
LEAD = 32  # tokens of the prompt that are kept before an output, so that its first token has a context
REACH = 64  # tokens of a prompt that are matched against earlier outputs


@dataclass(eq=False)
class _Volume:
    """Outputs of one scope; forgotten as a whole."""

    scope: str
    automaton: Automaton = field(default_factory=automaton)
    texts: list[Tokens] = field(default_factory=list)
    size: int = 0
    used: int = 0


class _Archive:
    """Earlier outputs, at most `room` tokens in all; what no draft came from for longest is forgotten first."""

    def __init__(self, room: int) -> None:
        self.room, self.size, self.clock = room, 0, 0
        self.volumes: dict[str, list[_Volume]] = {}

    def add(self, scope: str, tokens: Tokens) -> None:
        """One more output."""
        self.clock += 1
        part = self.room // PARTS
        tokens = tokens[-part:]
        mine = self.volumes.setdefault(scope, [])
        if not mine or mine[-1].size + len(tokens) > part:
            mine.append(_Volume(scope))
        volume = mine[-1]
        volume.used = self.clock
        while self.size + len(tokens) > self.room:
            self._forget(volume)
        volume.automaton.extend(ROOT, tokens.tolist())
        volume.texts.append(tokens)
        volume.size += len(tokens)
        self.size += len(tokens)

    def _forget(self, but: _Volume) -> None:
        every = (volume for mine in self.volumes.values() for volume in mine if volume is not but)
        oldest = min(every, key=lambda volume: volume.used)
        self.volumes[oldest.scope].remove(oldest)
        if not self.volumes[oldest.scope]:
            del self.volumes[oldest.scope]
        self.size -= oldest.size

    def texts(self) -> Texts:
        """Everything, to be saved."""
        return {scope: [text for volume in mine for text in volume.texts] for scope, mine in self.volumes.items()}


@dataclass(eq=False)
class _Text:
    """One request's own automaton, and where its text stands in the volumes."""

    own: Automaton
    end: int = ROOT
    known: int = 0
    matches: dict[_Volume, Match] = field(default_factory=dict)

    def read(self, tokens: Sequence[int], volumes: Sequence[_Volume]) -> None:
        """What came since the last draft."""
        new = tokens[self.known :]
        tail = tokens[-REACH:]
        self.end = self.own.extend(self.end, new)
        self.matches = {
            volume: volume.automaton.follow(*((self.matches[volume], new) if volume in self.matches else (START, tail)))
            for volume in volumes
        }
        self.known = len(tokens)

    def guess(self, budget: int, factor: float, least: float) -> tuple[Guess, _Volume | None]:
        """The tree that promises most, and the volume it is from."""
        best, source = self.own.tree(self.own.earlier(self.end), budget, factor, least), None
        for volume, match in self.matches.items():
            if match[1] * factor > best[-1]:
                found = volume.automaton.tree(match, budget, factor, least)
                best, source = (found, volume) if found[-1] > best[-1] else (best, source)
        return best, source


class SuffixDecodingDrafter(SoloDrafter):
    """Frequencies in suffix automata; shared by the requests of a scope."""

    facts = Facts(keys=("suffix-decoding",), paper="2411.04975", learns=True, evidence="docs/results/README.md#hybrids")

    @dataclass(frozen=True)
    class Options:
        """`factor` nodes per matched token, at most `nodes`, of at least `least`; `room`: tokens of earlier outputs."""

        factor: float = 1.0
        nodes: int = 64
        least: float = 0.1
        room: int = 1_000_000

        def __post_init__(self) -> None:
            if self.room < PARTS:
                raise ConfigError(f"drafter 'suffix-decoding' has room={self.room}; give at least {PARTS}.")

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.shelf = options, setup.store
        self.archive = _Archive(options.room)
        if self.shelf is not None:
            for scope, texts in self.shelf.open(options.room).items():
                for text in texts:
                    self.archive.add(scope, text)
            weakref.finalize(self, _keep, self.shelf, self.archive)

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(nodes=3, least=0.0, room=1000)

    def start(self, context: Context) -> _Text:
        return _Text(automaton())

    def stop(self, context: Context) -> None:
        output = context.tokens[max(context.prompt_length - LEAD, 0) :]
        if len(context.tokens) > context.prompt_length:
            self.archive.add(context.scope, np.array(output, np.int32))
            if self.shelf is not None:
                self.shelf.save_soon(self.archive.texts)

    def propose_one(self, context: Context, budget: int) -> Draft:
        text, o = context.state, self.options
        text.read(context.tokens, self.archive.volumes.get(context.scope, ()))
        (tokens, parents, chances, _), volume = text.guess(min(budget, o.nodes), o.factor, o.least)
        if volume is not None:
            volume.used = self.archive.clock
        return Draft(tokens, parents, None, chances, "suffix-decoding") if tokens else _NOTHING


def _keep(shelf: Shelf, archive: _Archive) -> None:
    """The engine is gone."""
    shelf.try_save(archive.texts())
