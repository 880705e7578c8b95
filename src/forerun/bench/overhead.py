"""`forerun bench overhead`: what one step of the loop costs where the model and the drafter cost nothing.

The model's pass hands out rows of logits made beforehand, the drafter a chain made on the spot; the time of both is
taken off, so what is left is the engine's: scheduling, packing, sampling, verification, cache books, text, statistics.
Kinds: `plain` (autoregressive), `zero` (the speculative decoder with nothing to draft), `accepted` and `rejected`
(a chain of 8 that is always, or never, what the target says).
Does not: store keys and values, which is the model's work; include a real tokenizer's time unless one is named.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import torch
from rich.table import Table

from forerun.bench import machine
from forerun.bench.figures import quantile
from forerun.bench.paper import paper
from forerun.build import guides_for
from forerun.caches import CACHES
from forerun.caches.contract import Cache
from forerun.config import Config, choose
from forerun.decoders import DECODERS
from forerun.decoders.contract import Parts
from forerun.drafters.contract import Drafter
from forerun.engine.engine import Engine, Limits, Members
from forerun.engine.guard import Guard
from forerun.engine.runner import ModelRunner
from forerun.engine.stats import EngineStats
from forerun.errors import ForerunError
from forerun.models.contract import Model, ModelInfo
from forerun.models.tokenizer import Tokenizer
from forerun.planners import PLANNERS
from forerun.rng import CounterRng, Purpose
from forerun.schedulers import SCHEDULERS
from forerun.types import Context, Dist, Draft, Facts, KVLayout, Pass, PassOutput, Sampling, Setup
from forerun.verifiers import VERIFIERS

VOCAB = 4096
NODES = 8
GOALS_US = {"plain": 150.0, "zero": 150.0, "accepted": 400.0, "rejected": 400.0}  # one request, median
_SAID, _NEVER = 7, 9  # what the target says greedily, and what it never says
_CONTEXT = 16_384
_PROMPT = 16
_WARM_UP_STEPS = 30


class Stub(Model):
    """Says the same at every position; `seconds` is its own time."""

    def __init__(self) -> None:
        layout = KVLayout((1,), (1,), torch.float32, torch.device("cpu"))
        self.info = ModelInfo("stub", VOCAB, _CONTEXT, 1, 1, layout)
        row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
        row[_SAID], row[_NEVER] = row.max() + 1, -40.0
        self.rows = row.expand(1024, VOCAB).contiguous()
        self.hidden = torch.zeros(1024, 1)
        self.p = torch.softmax(row, -1).numpy()
        self.seconds = 0.0

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        began = perf_counter()
        wanted = len(work.tokens) if work.logits is None else len(work.logits)
        output = PassOutput(self.rows[:wanted], dict.fromkeys(work.hidden, self.hidden[: len(work.tokens)]))
        self.seconds += perf_counter() - began
        return output


class ChainStub(Drafter):
    """Proposes a chain of one token, or what a dense q gives where the request draws; `seconds` is its own time."""

    facts = Facts(draws=True)

    @dataclass(frozen=True)
    class Options:
        """`token`: what is proposed; `q`: what it is said to be drawn from."""

        token: int
        q: Dist

    def __init__(self, options: Options, setup: Setup) -> None:
        self.options, self.seconds = options, 0.0

    def propose(self, batch: Sequence[Context], budgets: Sequence[int]) -> list[Draft]:
        began = perf_counter()
        drafts = [self._chain(context, budget) for context, budget in zip(batch, budgets, strict=True)]
        self.seconds += perf_counter() - began
        return drafts

    def _chain(self, context: Context, budget: int) -> Draft:
        token, q = self.options.token, self.options.q
        if context.sampling.greedy:
            return Draft.chain((token,) * budget, "stub")
        if token == _NEVER:
            return Draft.chain((token,) * budget, "stub", (q,) * budget)
        drawn = [context.rng.categorical(q, Purpose.DRAFT, depth) for depth in range(budget)]
        return Draft.chain(drawn, "stub", (q,) * budget)


@dataclass(frozen=True)
class Case:
    """One thing that is measured."""

    kind: str
    sampling: str  # "greedy" or "sampled"
    requests: int


CASES = [Case(k, s, n) for n in (1, 8) for s in ("greedy", "sampled") for k in GOALS_US]
Decode = Callable[[Sequence[int]], str]


def build(case: Case, decode: Decode) -> tuple[Engine, Stub, ChainStub]:
    """An engine of real members around the stubs."""
    stub, config, stats = Stub(), Config(), EngineStats()
    layout = stub.info.layout
    cache = choose(CACHES, config.cache)
    runner = ModelRunner(stub, cache.member(cache.options, layout, case.requests, _CONTEXT + 64))
    none = _no_model, _no_model, _no_model, _no_model, _no_model
    setup = Setup(VOCAB, _CONTEXT, (), case.requests, layout.device, layout.dtype, *none)
    drafter = ChainStub(_proposal(case, stub), setup)
    guard = Guard(drafter, setup, stats, config.draft_timeout)
    verifier, scheduler = choose(VERIFIERS, config.verifier), choose(SCHEDULERS, config.scheduler)
    decoder = choose(DECODERS, "autoregressive" if case.kind == "plain" else config.decoder)
    planner = choose(PLANNERS, f"fixed:nodes={0 if case.kind in ('plain', 'zero') else NODES}")
    members = Members(
        guard,
        decoder.member(decoder.options, Parts(guard, verifier.member(verifier.options), setup)),
        planner.member(planner.options, setup),
        scheduler.member(scheduler.options, setup),
        guides_for(setup),
        partial(CounterRng, coupled=verifier.member.facts.coupled),
    )
    limits = Limits(VOCAB, _CONTEXT, case.requests, config.max_step_tokens)
    return Engine(runner, members, limits, decode, stats), stub, drafter


def _no_model(*_: object) -> Any:  # noqa: ANN401 - a Runner, if there were one
    raise ForerunError("the overhead benchmark has no second model; measure it with `forerun bench`.")


def _proposal(case: Case, stub: Stub) -> ChainStub.Options:
    """Accepted: q = p, and drawn with the numbers of p. Rejected: q has most of its mass where p has none."""
    if case.kind != "rejected":
        return ChainStub.Options(_SAID, Dist(stub.p))
    q = stub.p * 0.5
    q[_NEVER] += 0.5
    return ChainStub.Options(_NEVER, Dist(q))


def measure(case: Case, steps: int, decode: Decode) -> dict[str, Any]:
    """Microseconds per step: median and 90th percentile over `steps` steps, the stubs' own time taken off.

    The processor's own time is given as well: it does not see other programs on a busy machine.
    """
    engine, stub, drafter = build(case, decode)
    sampling = Sampling(temperature=0.0 if case.sampling == "greedy" else 1.0, seed=0, ignore_eos=True)
    wall: list[float] = []
    cpu: list[float] = []
    tokens, failures = 0, engine.stats.draft_failures
    while len(wall) < steps:
        if not engine.requests:
            for number in range(case.requests):
                engine.add(range(1, _PROMPT + 1), replace(sampling, seed=number))
            _warm_up(engine)
        own, on_cpu, began = stub.seconds + drafter.seconds, thread_time(), perf_counter()
        events = engine.step()
        wall.append(perf_counter() - began - (stub.seconds + drafter.seconds - own))
        cpu.append(thread_time() - on_cpu - (stub.seconds + drafter.seconds - own))
        tokens += sum(len(event.emissions) for event in events)
    if engine.stats.draft_failures > failures:
        raise ForerunError("the stub's drafts were refused, so nothing was measured; report this as a bug.")
    found = {"median_us": 1e6 * quantile(wall, 0.5), "p90_us": 1e6 * quantile(wall, 0.9)}
    goal = GOALS_US[case.kind] if case.requests == 1 else None
    return {
        **case.__dict__,
        **found,
        "cpu_median_us": 1e6 * quantile(cpu, 0.5),
        "steps": steps,
        "tokens_per_step": tokens / steps / case.requests,
        "goal_us": goal,
        "reached": None if goal is None else found["median_us"] < goal,
    }


def _warm_up(engine: Engine) -> None:
    for _ in range(_WARM_UP_STEPS):
        engine.step()


def words(tokens: Sequence[int]) -> str:
    """A decoder that costs next to nothing: every token is one letter."""
    return "".join([_LETTERS[token] for token in tokens])


_LETTERS = [chr(ord("a") + i % 26) for i in range(VOCAB)]


def run(steps: int = 400, tokenizer: str | None = None) -> dict[str, Any]:
    """Every case."""
    decode = Tokenizer.from_folder(tokenizer).decode if tokenizer else words
    torch.set_num_threads(1)  # rows this short gain nothing from threads, and others' load would show
    cases = [measure(case, steps, decode) for case in CASES]
    return {
        "title": "Overhead of the loop per step, without model and drafter",
        "benchmark": "overhead",
        "machine": machine.facts(),
        **machine.circumstances(),
        "settings": {"vocabulary": VOCAB, "nodes": NODES, "steps": steps, "tokenizer": tokenizer},
        "cases": cases,
    }


def show(report: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=report["title"], title_justify="left")
    for name in ("kind", "sampling", "requests", "median µs", "p90 µs", "CPU µs", "goal µs", "tokens/step"):
        table.add_column(name, justify="left" if name in ("kind", "sampling") else "right")
    for c in report["cases"]:
        goal = "–" if c["goal_us"] is None else f"{c['goal_us']:.0f}{'' if c['reached'] else ' missed'}"
        micro = [f"{c[name]:.0f}" for name in ("median_us", "p90_us", "cpu_median_us")]
        numbers = (*micro, goal, f"{c['tokens_per_step']:.2f}")
        table.add_row(c["kind"], c["sampling"], str(c["requests"]), *numbers)
    paper().print(table)
