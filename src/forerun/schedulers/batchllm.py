"""Requests whose prompts begin alike run together, first those that write most for what they read (2412.03594).

So a prefix cache holds what a group shares as long as the group lasts, and no longer; and somebody decodes while long
prompts are read. Made for work that waits as a whole; who waited `patience` seconds goes first.
Does not: share anything itself: use it with `cache=paged`; find prefixes shorter than `prefix` tokens.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup

Group = tuple[str, tuple[int, ...]]  # scope, and how the prompts begin


class BatchllmScheduler(Scheduler):
    """Decodes first; slots go to one group after the other."""

    facts = Facts(keys=("batchllm",), paper="2412.03594", stall_free=True, evidence="docs/results/README.md#schedulers")

    @dataclass(frozen=True)
    class Options:
        """Tokens that make prompts a group, and seconds after which a request waits for no group."""

        prefix: int = 32
        patience: float = 600.0

        def __post_init__(self) -> None:
            for name in ("prefix", "patience"):
                if not getattr(self, name) > 0:
                    raise ConfigError(f"scheduler option {name!r} is {getattr(self, name)}; give more than 0.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(prefix=4, patience=0.1)

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options = options
        self._last: Group | None = None  # the group that is under way

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        groups = defaultdict[Group, list[Candidate]](list)
        late = [c for c in waiting if now - c.arrived > self.options.patience]
        for c in waiting:
            if now - c.arrived <= self.options.patience:
                groups[self._group(c)].append(c)
        order = sorted(groups, key=lambda g: (g != self._last, -self._worth(groups[g]), groups[g][0].arrival))
        rest = [c for group in order for c in sorted(groups[group], key=lambda c: (c.prompt, c.arrival))]
        return [c.id for c in (*sorted(late, key=lambda c: c.arrival), *rest)]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        reading = [c for c in running if not c.decoding]
        if reading:
            self._last = self._group(max(reading, key=lambda c: c.arrival))
        return in_order(sorted(running, key=lambda c: (not c.decoding, c.arrival)), room)

    def _group(self, c: Candidate) -> Group:
        return c.scope, tuple(c.prompt[: self.options.prefix])

    def _worth(self, group: Sequence[Candidate]) -> float:
        """Tokens that may be written for each that must be read, where what all share is read once."""
        read = sum(len(c.prompt) for c in group) - self.options.prefix * (len(group) - 1)
        return sum(c.limit for c in group) / max(read, 1)
