"""Stall-free batching: decodes always run, and prompts fill what is left of a step's time (Sarathi-Serve, 2403.02310).

How many tokens that is follows from what passes cost on this machine, with the context that the step reads. A decode
counts with as many drafted nodes as it had in its steps so far. Which prompt is read follows from when it is due: once
`patience` times its length was read of any prompts since it came. Short prompts so overtake a long one between two of
its chunks, yet none that comes later than that does (earliest deadline first).
Does not: know what the planner will give; align chunks to a kernel's tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup


class SarathiScheduler(Scheduler):
    """Decodes, then chunks of prompts as they are due, while the step stays under its target."""

    facts = Facts(keys=("sarathi",), paper="2403.02310", stall_free=True, evidence="docs/results/README.md#schedulers")

    @dataclass(frozen=True)
    class Options:
        """A step's time: milliseconds, or so many passes of one token; the smallest chunk; how long a prompt waits."""

        step_ms: float = 0.0  # 0: by `stretch`
        stretch: float = 4.0
        floor_ms: float = 10.0  # what no reader sees; shorter steps read prompts in chunks that cost more per token
        least: int = 16  # tokens of prompts in a step, whatever they cost
        patience: float = 4.0  # times its own length for which a prompt lets shorter ones pass; 0: by arrival

        def __post_init__(self) -> None:
            for name in ("step_ms", "floor_ms", "patience"):
                if not getattr(self, name) >= 0:
                    raise ConfigError(f"scheduler option {name!r} is {getattr(self, name)}; give 0 or more.")
            for name in ("stretch", "least"):
                if not getattr(self, name) >= 1:
                    raise ConfigError(f"scheduler option {name!r} is {getattr(self, name)}; give 1 or more.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(least=2)

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.costs = options, setup.costs()
        self._read = 0  # tokens of prompts
        self._dues: dict[int, float] = {}  # request -> how many are read by when its reading should be over
        self.target = options.step_ms / 1000 or max(options.floor_ms / 1000, options.stretch * self.costs.of(1))

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return [c.id for c in sorted(waiting, key=self._due)]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        decodes = [c for c in running if c.decoding]
        prompts = [c for c in running if not c.decoding]
        left = room - len(decodes)
        if prompts and left > 0:
            context, verified = sum(c.held for c in running), len(decodes) + ceil(sum(c.drafted for c in decodes))
            left = min(left, max(self.options.least, self._rows(context, len(running), room) - verified))
        by_age = sorted(decodes, key=lambda c: c.arrival)
        chunks = in_order(sorted(prompts, key=self._due), left)
        self._read += sum(chunk.count for chunk in chunks)
        return in_order(by_age, room) + chunks

    def ended(self, candidate: Candidate) -> None:
        self._dues.pop(candidate.id, None)

    def _due(self, c: Candidate) -> tuple[float, int]:
        """When, and the order of those that are due together."""
        return self._dues.setdefault(c.id, self._read + self.options.patience * c.pending), c.arrival

    def _rows(self, context: int, requests: int, room: int) -> int:
        """The most tokens whose pass stays under the target."""
        low, high = 0, room
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.costs.of(middle, context, requests) <= self.target
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
