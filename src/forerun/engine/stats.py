"""Counters and timings that every method gets for free.

Convention: tokens per step = (accepted + 1) per target pass, bonus included; plain decoding is 1.00.
"""

from collections import Counter
from dataclasses import dataclass, field

from forerun.types import Turn


@dataclass(slots=True)
class RequestStats:
    """What one request cost and gained."""

    steps: int = 0  # target passes that yielded tokens
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: Counter[int] = field(default_factory=Counter)  # depth -> drafts that deep
    accepted_at: Counter[int] = field(default_factory=Counter)  # depth -> drafts accepted that deep
    sources: Counter[str] = field(default_factory=Counter)
    cached: int = 0  # prompt tokens that the cache already held
    preempted: int = 0
    # Times differ from run to run; everything else is the same for the same requests.
    queued: float = field(default=0.0, compare=False)  # seconds without a slot
    held: float = field(default=0.0, compare=False)  # entries of the cache times the seconds that they were held

    def count(self, turn: Turn, emitted: int) -> None:
        """One judged turn, of which `emitted` tokens were used."""
        path = len(turn.emissions) - 1
        self.steps += 1
        self.tokens += emitted
        self.drafted += turn.drafted
        self.accepted += path
        for depth in range(1, turn.depth + 1):
            self.reached[depth] += 1
        for depth in range(1, path + 1):
            self.accepted_at[depth] += 1
        for emission in turn.emissions[:emitted]:
            self.sources[emission.source] += 1

    @property
    def tokens_per_step(self) -> float:
        """Mean acceptance length, bonus included."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted nodes."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Share of drafts at least that deep whose accepted path is; position 1 first."""
        return tuple(self.accepted_at[d] / n for d, n in sorted(self.reached.items()))

    def add(self, other: "RequestStats") -> None:
        """Sum over requests."""
        for name in ("steps", "tokens", "drafted", "accepted", "cached", "preempted", "queued", "held"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("reached", "accepted_at", "sources"):
            getattr(self, name).update(getattr(other, name))


@dataclass(slots=True)
class EngineStats:
    """Totals of an engine since it was built; times in seconds."""

    steps: int = 0
    draft_failures: int = 0  # a drafter raised, hung or returned nonsense
    failed_requests: int = 0
    preemptions: int = 0
    moved: int = 0  # tokens whose keys and values were copied out of the cache, or back
    move_time: float = 0.0
    rows: int = 0  # tokens that went through the target
    plan_time: float = 0.0  # drafting included
    run_time: float = 0.0
    commit_time: float = 0.0  # verification included
    other_time: float = 0.0
