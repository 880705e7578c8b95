"""Generate once with a clock running; the order in which several engines take turns.

Times of steps leave out the prompt: they are counted from the step in which every text has its first token.
Does not: judge the texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from forerun.engine.stats import EngineStats, RequestStats
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.types import Sampling

PARTS = {"draft": "plan_time", "target": "run_time", "verify": "commit_time", "other": "other_time"}


@dataclass(frozen=True)
class Clock:
    """Seconds that the engine's steps took so far, by part."""

    steps: int
    parts: tuple[float, ...]  # in the order of PARTS

    @classmethod
    def read(cls, stats: EngineStats) -> "Clock":
        """The engine's counters now."""
        return cls(stats.steps, tuple(getattr(stats, name) for name in PARTS.values()))

    def since(self, start: "Clock") -> "Clock":
        """What passed between two readings."""
        return Clock(self.steps - start.steps, tuple(b - a for a, b in zip(start.parts, self.parts, strict=True)))

    def ms_per_step(self) -> dict[str, float]:
        """Milliseconds of every part in one step."""
        return {name: 1e3 * part / max(self.steps, 1) for name, part in zip(PARTS, self.parts, strict=True)}


@dataclass(frozen=True)
class Run:
    """One group of prompts, generated together once."""

    texts: tuple[tuple[int, ...], ...]
    seconds: float  # from the first prompt's arrival to the last token
    first_token_seconds: float  # until every text has a token
    stats: RequestStats  # of all texts together
    clock: Clock
    draft_failures: int = 0

    @property
    def tokens(self) -> int:
        """Tokens written."""
        return sum(len(text) for text in self.texts)

    @property
    def tokens_per_second(self) -> float:
        """The prompt's reading included."""
        return self.tokens / self.seconds


def generate(llm: LLM, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling]) -> Run:
    """Run a group to its end. Raises ForerunError if a request fails."""
    engine, texts, stats = llm.engine, dict[int, list[int]](), RequestStats()
    failures, start, first = engine.stats.draft_failures, Clock.read(engine.stats), 0.0
    began = perf_counter()
    for prompt, sampling in zip(prompts, samplings, strict=True):
        texts[engine.add(prompt, sampling)] = []
    while engine.busy:
        for event in engine.step():
            texts[event.request] += [emission.token for emission in event.emissions]
            if event.error is not None:
                raise ForerunError(event.error)
            if event.stats is not None:
                stats.add(event.stats)
        if not first and all(texts.values()):
            first, start = perf_counter() - began, Clock.read(engine.stats)
    seconds = perf_counter() - began
    clock = Clock.read(engine.stats).since(start)
    written = tuple(tuple(text) for text in texts.values())
    return Run(written, seconds, first, stats, clock, engine.stats.draft_failures - failures)


def turns(count: int, repeats: int) -> Iterator[tuple[int, list[int]]]:
    """(round, the order in which `count` engines run in it): forwards, then backwards, and so on.

    Whatever drifts while the machine warms up or others use it meets every engine alike.
    """
    for number in range(repeats):
        order = list(range(count))
        yield number, order[::-1] if number % 2 else order
