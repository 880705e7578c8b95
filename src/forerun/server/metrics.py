"""Prometheus metrics under the names that this field knows, from the engine's own books.

Acceptance counts drafts: mean acceptance length = 1 + accepted / drafts, bonus included.
Does not: count by model or key, or keep anything after the server ends.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from forerun.engine.engine import Engine
from forerun.engine.stats import EngineStats, RequestStats
from forerun.server.loop import Ticket
from forerun.types import Event

_FIRST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
_NEXT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WHOLE = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass
class Snapshot:
    """What an engine's books say between two steps."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    drafts: RequestStats = field(default_factory=RequestStats)
    engine: EngineStats = field(default_factory=EngineStats)


class Tally:
    """How many values lay at or below each bound; for one thread, so that it costs a tenth of a locked Histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        """One value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def family(self, name: str, text: str) -> Metric:
        """As Prometheus reads it."""
        labels = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return HistogramMetricFamily(name, text, [*zip(labels, accumulate(self.counts), strict=True)], self.sum)


class Metrics(Collector):
    """`observe` hears every event; `take` reads the books in the engine's thread; `text` answers a scrape."""

    def __init__(self, prefix: str, room: int) -> None:
        self._prefix, self._room = f"{prefix}:", room
        self._ended = RequestStats()  # of the requests that are no more
        self._live: dict[int, RequestStats] = {}  # of those whose end was not heard of yet
        self._lock = Lock()  # a request is among these or among those
        self._last: dict[tuple[int, int], float] = {}  # ticket and ask -> when its last token came
        self.registry, self._snapshot = CollectorRegistry(), Snapshot()
        self._first, self._next, self._whole = Tally(_FIRST), Tally(_NEXT), Tally(_WHOLE)
        self._prompt = self._written = 0  # tokens
        name = f"{self._prefix}request_success"
        self._ends = Counter(name, "Requests that ended, by reason.", ["finished_reason"], registry=self.registry)
        self.registry.register(self)

    def observe(self, ticket: Ticket, index: int, event: Event) -> None:
        """One event of one ask."""
        key, count = (id(ticket), index), len(event.emissions)
        before = self._last.get(key)
        if before is None and count:
            self._first.add(event.time - ticket.arrived)
            self._prompt += len(ticket.asks[index].prompt)
        if count and before is not None:
            self._next.add((event.time - before) / count, count)
        if count:
            self._written += count
            self._last[key] = event.time
        if event.finish_reason is not None:
            self._last.pop(key, None)
            self._whole.add(event.time - ticket.arrived)
            self._ends.labels(event.finish_reason).inc()
            with self._lock:
                self._ended.add(event.stats)
                self._live.pop(event.request, None)

    def take(self, engine: Engine) -> None:
        """Read the books."""
        now = RequestStats()
        with self._lock:
            self._live |= {number: request.stats for number, request in engine.requests.items()}
            for stats in (self._ended, *self._live.values()):
                now.add(stats)
        running = sum(request.slot is not None for request in engine.requests.values())
        usage = min(1.0, max(0.0, 1 - engine.cache.free() / self._room))
        self._snapshot = Snapshot(running, len(engine.requests) - running, usage, now, engine.stats)

    def text(self) -> bytes:
        """What a scrape reads."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Metrics of the last snapshot."""
        s, drafts, name = self._snapshot, self._snapshot.drafts, self._prefix
        yield self._first.family(name + "time_to_first_token_seconds", "From the request to its first token.")
        yield self._next.family(name + "inter_token_latency_seconds", "Between two tokens of a request.")
        yield self._whole.family(name + "e2e_request_latency_seconds", "From the request to its end.")
        yield self._total("prompt_tokens", "Tokens of prompts.", self._prompt)
        yield self._total("generation_tokens", "Tokens written.", self._written)
        yield self._gauge("num_requests_running", "Requests that have a slot.", s.running)
        yield self._gauge("num_requests_waiting", "Requests that wait for one.", s.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the cache that requests hold; 1 is all of it.", s.kv_usage)
        yield self._total("spec_decode_num_drafts", "Drafts judged.", drafts.reached[1])
        yield self._total("spec_decode_num_draft_tokens", "Tokens drafted.", drafts.drafted)
        yield self._total("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", drafts.accepted)
        places = CounterMetricFamily(
            f"{self._prefix}spec_decode_num_accepted_tokens_per_pos", "The same by position.", labels=["position"]
        )
        for depth in range(1, max(drafts.reached, default=0) + 1):
            places.add_metric([str(depth - 1)], drafts.accepted_at[depth])
        yield places
        yield self._total("engine_steps", "Rounds of the engine's loop.", s.engine.steps)
        spent = CounterMetricFamily(f"{self._prefix}engine_seconds", "Time of these, by phase.", labels=["phase"])
        for phase in ("plan", "run", "commit", "other"):
            spent.add_metric([phase], getattr(s.engine, f"{phase}_time"))
        yield spent
        yield self._total("num_preemptions", "Requests that lost their slot.", s.engine.preemptions)
        yield self._total("draft_failures", "Drafts that a drafter failed to make.", s.engine.draft_failures)
        yield self._total("failed_requests", "Requests that ended with an error.", s.engine.failed_requests)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(self._prefix + name, text, value)

    def _total(self, name: str, text: str, value: int) -> Metric:
        return CounterMetricFamily(self._prefix + name, text, value)
