"""Short texts first: one bit tells short from long, and only of long ones is told what is left (2402.03564).

Both come from how long the scope's earlier texts after prompts of a like length were: the bit from their mean beside
that of all, the rest from those that were longer than what is written. Long ones run by what is left of them, and give
their slots to short ones. Who waited `patience` seconds counts as short, so that nobody starves.
Does not: read the prompt; run a model to predict.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ConfigError
from forerun.schedulers.contract import Candidate, Pick, Scheduler, in_order
from forerun.types import Facts, Setup

KINDS = 4096  # of scope and prompt length
LENGTHS = 64  # remembered of a kind


class SkippredictScheduler(Scheduler):
    """Decodes first; slots and prompts go to short texts by arrival, then to long ones by what is left."""

    facts = Facts(
        keys=("skippredict",), paper="2402.03564", stall_free=True, evidence="docs/results/README.md#schedulers"
    )

    @dataclass(frozen=True)
    class Options:
        """Seconds after which nobody counts as long, and the length that is taken for long before any was seen."""

        patience: float = 10.0
        short: int = 64

        def __post_init__(self) -> None:
            for name in ("patience", "short"):
                if not getattr(self, name) > 0:
                    raise ConfigError(f"scheduler option {name!r} is {getattr(self, name)}; give more than 0.")

    @classmethod
    def toy(cls) -> Options:
        return cls.Options(patience=0.1, short=6)

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.slots = options, setup.max_requests
        self._lengths = OrderedDict[tuple[str, int], deque[int]]()
        self._mean, self._count = 0.0, 0  # of all

    def admit(self, waiting: Sequence[Candidate], now: float) -> list[int]:
        return [c.id for c in sorted(waiting, key=lambda c: self._rank(c, now))]

    def pick(self, running: Sequence[Candidate], room: int, now: float) -> list[Pick]:
        return in_order(sorted(running, key=lambda c: (not c.decoding, *self._rank(c, now))), room)

    def yielding(self, running: Sequence[Candidate], waiting: Sequence[Candidate], now: float) -> list[int]:
        if len(running) < self.slots:
            return []
        last = max(running, key=lambda c: self._rank(c, now))
        return [last.id] if self._long(last, now) and not all(self._long(c, now) for c in waiting) else []

    def victim(self, running: Sequence[Candidate], now: float) -> int:
        return max(running, key=lambda c: self._rank(c, now)).id

    def ended(self, candidate: Candidate) -> None:
        key = _kind(candidate)
        self._lengths.setdefault(key, deque(maxlen=LENGTHS)).append(candidate.written)
        self._lengths.move_to_end(key)
        if len(self._lengths) > KINDS:
            self._lengths.popitem(last=False)
        self._count = min(self._count + 1, KINDS)
        self._mean += (candidate.written - self._mean) / self._count

    def _rank(self, c: Candidate, now: float) -> tuple[bool, float, int]:
        if self._long(c, now):
            return True, self._left(c), c.arrival
        return False, 0.0, c.arrival

    def _long(self, c: Candidate, now: float) -> bool:
        """The cheap prediction."""
        if now - c.arrived > self.options.patience:
            return False
        seen = self._lengths.get(_kind(c))
        likely = min(c.limit, sum(seen) / len(seen)) if seen else c.limit
        return likely > (self._mean if self._count else self.options.short)

    def _left(self, c: Candidate) -> float:
        """The expensive prediction: tokens to come."""
        longer = [n for n in self._lengths.get(_kind(c), ()) if n > c.written]
        whole = sum(longer) / len(longer) if longer else c.limit
        return max(min(whole, c.limit) - c.written, 1.0)


def _kind(c: Candidate) -> tuple[str, int]:
    """Whose text it is, and how long its prompt is, to a factor of two."""
    return c.scope, len(c.prompt).bit_length()
