"""The only loop: admit -> pick -> plan -> run -> commit -> emit. It knows contracts and no method.

One thread at a time calls `add`, `abort` and `step`: the server's own, or whoever has the `Desk`.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from time import perf_counter
from typing import Any

from forerun.config import check_tokens
from forerun.constraints.contract import Guides
from forerun.decoders.contract import Decoder, Plan, Seat
from forerun.drafters.contract import Drafter
from forerun.engine.request import Request
from forerun.engine.runner import ModelRunner
from forerun.engine.stats import EngineStats
from forerun.engine.swap import copy_in, copy_out
from forerun.engine.text import Detokenizer, StopFinder, remembering
from forerun.errors import ForerunError, RequestError, log_bug
from forerun.planners.contract import Planner, Spent
from forerun.rng import CounterRng, Rng
from forerun.sampling import path_to
from forerun.schedulers.contract import Candidate, Pick, Scheduler
from forerun.types import Context, Event, Output, Sampling, Turn, owner

_LOG = logging.getLogger("forerun")


@dataclass(frozen=True)
class Members:
    """The chosen member of every family that the loop calls."""

    drafter: Drafter
    decoder: Decoder
    planner: Planner
    scheduler: Scheduler
    guides: Guides
    rng: Callable[[int], Rng] = CounterRng  # of a request's seed


@dataclass(frozen=True)
class Limits:
    """Sizes of an engine."""

    vocab: int
    context_length: int  # prompt and output of one request
    max_requests: int
    max_step_tokens: int
    eos: tuple[int, ...] = ()


class Engine:
    """Requests in, events out."""

    def __init__(
        self,
        runner: ModelRunner,
        members: Members,
        limits: Limits,
        decode: Callable[[Sequence[int]], str],
        stats: EngineStats | None = None,
        caveats: tuple[str | None, str | None] = (None, None),
    ) -> None:
        self.runner, self.members, self.limits, self.decode = runner, members, limits, remembering(decode)
        self.clock = perf_counter  # seconds; whoever plays a trace has another
        self.before_pass: Callable[[], None] = _nothing  # what runs beside a pass, on another thread, costs least
        # In a sentence each: how texts are not the model's own, and why a seed need not bring its text again.
        self.caveat, self.seed_caveat = caveats
        self.cache, self.stats = runner.cache, stats or EngineStats()
        self.requests: dict[int, Request] = {}  # all that are not finished, by id
        self._next, self._said = 0, list[Event]()
        self._sharing = 0.0  # seconds in which the planner thought, in this step
        self._saying = 0.0  # and in which the step before became text

    def add(  # noqa: PLR0913 - what a request may say
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        scope: str = "",
        rng: Rng | None = None,
        prediction: Sequence[int] = (),
        *,
        priority: int = 0,
        pace: float = 0.0,
    ) -> int:
        """A new request; its id. Raises RequestError, in one sentence, for what cannot be served.

        The lower `priority`, the sooner; `pace`: tokens per second that are read. Schedulers may look at them.
        """
        room = self.check(prompt, sampling, prediction)
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(63))
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else set(self.limits.eos))
        guide = self.members.guides(sampling.constraint, ends) if sampling.constraint is not None else None
        number, self._next, now = self._next, self._next + 1, self.clock()
        self.requests[number] = Request(
            id=number,
            arrival=number,
            tokens=list(prompt),
            prompt=tuple(prompt),
            sampling=sampling,
            rng=rng or self.members.rng(sampling.seed or 0),
            limit=min(sampling.max_tokens or room, room),
            ends=ends,
            detokenizer=Detokenizer(self.decode, prompt),
            stops=StopFinder(sampling.stop),
            scope=scope,
            prediction=tuple(prediction),
            priority=priority,
            pace=pace,
            arrived=now,
            since=now,
            guide=guide,
            scores=[None] if sampling.prompt_logprobs is not None else [],
        )
        return number

    def check(self, prompt: Sequence[int], sampling: Sampling, prediction: Sequence[int] = ()) -> int:
        """How many tokens there is room for; RequestError as `add` raises it, but for what a constraint says."""
        room = self.limits.context_length - len(prompt)
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token.")
        if room < 1:
            size = f"{len(prompt)} tokens and the context holds {self.limits.context_length}"
            raise RequestError(f"the prompt has {size}; shorten it to leave room for at least one token.")
        check_tokens(sampling, prompt, self.limits.vocab, prediction)
        return room

    def abort(self, number: int) -> None:
        """End a request now; its event comes with the next step. Unknown or finished ids are ignored."""
        request = self.requests.get(number)
        if request is not None:
            self._said.append(self._end(request, "abort"))

    @property
    def busy(self) -> bool:
        """Whether a step would do or say anything."""
        return bool(self.requests or self._said)

    def step(self) -> list[Event]:
        """One round for everybody that fits in it."""
        try:
            self._round()
        except Exception as problem:  # noqa: BLE001 - whoever it may be of ends with an error, the engine lives
            self._fail(problem)
        said, self._said = self._said, []
        return said

    def _round(self) -> None:
        began = self.clock()
        self._admit(began)
        seats = self._seat(self._pick(began), began)
        planning = self.clock()
        if not seats:
            return
        plans = self.members.decoder.plan(seats)
        running = self.clock()
        _foresee(seats, plans)
        self.before_pass()
        outputs = self._run(seats, plans)
        committing = self.clock()
        turns = self._commit(seats, plans, outputs)
        telling = self.clock()
        around = planning - began + telling - committing - self._sharing + self._saying
        spent = Spent(running - planning, committing - running, _rows(plans), around, self._sharing)
        self._tell(seats, plans, turns, spent)
        emitting = self.clock()
        self._emit(seats, plans, turns, emitting)
        self._saying = self.clock() - emitting
        self._clock(began, planning, running, committing, emitting)

    # admit

    def _admit(self, now: float) -> None:
        """Give slots to waiting requests while there are slots, and room for what they must run."""
        waiting = [self._candidate(r) for r in self.requests.values() if r.slot is None]
        if not waiting:
            return
        for number in self.members.scheduler.yielding(self._running(), waiting, now):
            self._preempt(self.requests[number], now)
        running = sum(r.slot is not None for r in self.requests.values())
        for number in self.members.scheduler.admit(waiting, now):
            request = self.requests[number]
            if running == self.limits.max_requests or (running and self.cache.free() < request.pending + 1):
                return
            try:
                self._open(request, now)
            except Exception as problem:  # noqa: BLE001 - it ends alone
                self._lose(request, _sentence(problem))
            running += request.slot is not None

    def _open(self, request: Request, now: float) -> None:
        """A slot, with what can be found of the request's tokens."""
        request.charge(now)
        slot, held = self.cache.open(() if request.scoring else request.tokens, request.scope)
        request.slot, request.done, copy, request.saved = slot, held, request.saved, None
        began = self.clock()
        if copy is not None and copy_in(self.cache, slot, copy):
            request.done = self.cache.length(slot)
            self._moved(request.done - held, self.clock() - began)
        if request.context is not None:
            self.members.drafter.resume(request.context)
            self.members.decoder.resume(request.state)
        else:
            request.stats.cached = request.done
            seen = request.id, request.tokens, request.prompt_length, request.sampling, request.rng
            context = Context(*seen, scope=request.scope, prediction=request.prediction, guide=request.guide)
            request.context = replace(context, state=self.members.drafter.start(context))
            request.state = self.members.decoder.start(request.context)

    def _moved(self, tokens: int, seconds: float) -> None:
        self.stats.moved += tokens
        self.stats.move_time += seconds
        self.members.scheduler.moved(tokens, seconds)

    def _candidate(self, r: Request) -> Candidate:
        asked = r.limit, owner(r.scope), r.priority, r.pace, r.arrived, r.stats.drafted / max(r.stats.steps, 1)
        return Candidate(r.id, r.arrival, r.pending, r.slot is not None, r.prompt, r.written, *asked)

    def _running(self) -> list[Candidate]:
        return [self._candidate(r) for r in self.requests.values() if r.slot is not None]

    # pick

    def _pick(self, now: float) -> list[Pick]:
        running = self._running()
        return self.members.scheduler.pick(running, self.limits.max_step_tokens, now) if running else []

    def _seat(self, picks: Sequence[Pick], now: float) -> list[Seat]:
        """Budgets from planner or decoder, memory from the cache; who finds no memory waits."""
        chosen = [(request := self.requests[p.id], request.readable(p.count)) for p in picks]
        ready = [r for r, count in chosen if count == r.pending]
        budgets = self._budgets(ready, self.limits.max_step_tokens - sum(count for _, count in chosen))
        seats: list[Seat] = []
        for request, count in chosen:
            last, budget = count == request.pending, budgets.get(request.id, 0)
            granted = self._reserve(request, count, budget, now) if request.slot is not None else None
            if granted is None or request.slot is None or request.context is None:
                continue
            pending = tuple(request.tokens[request.done : request.done + count])
            seats.append(Seat(request.context, request.slot, pending, last, granted, request.state))
            request.rng.begin(request.stats.steps, len(request.tokens))
        return [s for s in seats if s.context.id in self.requests and self.requests[s.context.id].slot == s.slot]

    def _budgets(self, ready: Sequence[Request], room: int) -> dict[int, int]:
        """Nodes for each request: those that its decoder's search is for, or else the planner's share."""
        contexts, began = [r.context for r in ready if r.context is not None], self.clock()
        shares = self.members.planner.share(contexts, room)
        self._sharing = self.clock() - began
        budgets = dict[int, int]()
        for r, share in zip(ready, shares, strict=True):
            wish = self.members.decoder.nodes(r.state)
            if wish is not None:
                budgets[r.id] = max(0, min(wish, room // len(ready), self.limits.context_length - len(r.tokens)))
            elif share:
                budgets[r.id] = max(0, min(share, r.limit - r.written - 1))
        return budgets

    def _reserve(self, request: Request, count: int, budget: int, now: float) -> int | None:
        """The budget that memory allows; None where not even the pending tokens fit and the request must wait."""
        slot = request.slot if request.slot is not None else -1
        while not self.cache.reserve(slot, count + budget):
            if budget:
                budget = 0
                continue
            running = self._running()
            if len(running) == 1:
                self._said.append(self._end(request, "length"))  # alone, and the cache cannot hold one token more
                return None
            victim = self.requests[self.members.scheduler.victim(running, now)]
            self._preempt(victim, now)
            if victim is request:
                return None
        return budget

    def _preempt(self, request: Request, now: float) -> None:
        """Take the slot; the request reads its tokens again later, or has a copy, and goes on where it was."""
        request.charge(now)
        if request.slot is not None and request.done and self.members.scheduler.saves(self._candidate(request)):
            began = self.clock()
            request.saved = copy_out(self.cache, request.slot, request.tokens[: request.done])
            self._moved(request.done, self.clock() - began)
        self._unseat(request)
        request.done = 0
        if request.context is not None:
            self.members.drafter.pause(request.context)
            self.members.decoder.pause(request.state)
        request.stats.preempted += 1
        self.stats.preemptions += 1

    # run and commit

    def _run(self, seats: Sequence[Seat], plans: Sequence[Plan]) -> list[Output]:
        self.stats.rows += _rows(plans)
        work = [p.work for p in plans]
        reading = [(i, self.requests[seat.context.id]) for i, seat in enumerate(seats) if not seat.last]
        scored = {i: request for i, request in reading if request.scoring}
        for i in scored:  # decoders neither ask for these rows nor see them
            work[i] = work[i]._replace(logits=tuple(range(len(work[i].tokens))))
        outputs = self.runner.run(work)
        for i, request in scored.items():
            outputs[i] = request.score(outputs[i])
        return outputs

    def _fail(self, problem: Exception) -> None:
        """The round itself failed, and nobody's cache can be trusted to hold it; without a slot nobody could go on."""
        everybody, sentence = list(self.requests.values()), _sentence(problem)
        for request in [r for r in everybody if r.slot is not None] or everybody:
            self._lose(request, sentence)

    def _lose(self, request: Request, sentence: str) -> None:
        """End a request with an error."""
        request.error = sentence
        self.stats.failed_requests += 1
        self._said.append(self._end(request, "error"))

    def _commit(self, seats: Sequence[Seat], plans: Sequence[Plan], outputs: Sequence[Output]) -> list[Turn]:
        """Every sound seat's turn from the decoder; a seat whose logits are broken ends alone."""
        sound = [i for i, output in enumerate(outputs) if all(map(isfinite, output.peak))]
        if len(sound) == len(seats):
            return self.members.decoder.commit(seats, plans, outputs)
        broken = Turn((), (), error="the model returned logits that are not finite; check its weights and dtype.")
        turns = [broken] * len(seats)
        left = [seats[i] for i in sound], [plans[i] for i in sound], [outputs[i] for i in sound]
        judged = self.members.decoder.commit(*left)
        for i, turn in zip(sound, judged, strict=True):
            turns[i] = turn
        return turns

    def _tell(self, seats: Sequence[Seat], plans: Sequence[Plan], turns: Sequence[Turn], spent: Spent) -> None:
        """Let the planner learn from whoever wrote something."""
        wrote = [i for i, turn in enumerate(turns) if turn.emissions]
        if wrote:
            contexts, drafts = [seats[i].context for i in wrote], [plans[i].draft for i in wrote]
            self.members.planner.observe(contexts, drafts, [turns[i] for i in wrote], spent)

    # emit

    def _emit(self, seats: Sequence[Seat], plans: Sequence[Plan], turns: Sequence[Turn], now: float) -> None:
        for seat, plan, turn in zip(seats, plans, turns, strict=True):
            request = self.requests[seat.context.id]
            request.charge(now)
            if turn.error is not None:
                self._lose(request, turn.error)
                continue
            try:
                self._take(request, seat, plan, turn, now)
            except Exception as problem:  # noqa: BLE001 - it ends alone
                self._lose(request, _sentence(problem))

    def _take(self, request: Request, seat: Seat, plan: Plan, turn: Turn, now: float) -> None:
        """Commit one request's turn, and say it."""
        used, text = request.commit(turn.emissions)
        if turn.emissions:
            request.stats.count(turn, len(used))
        read, tokens = len(seat.pending), plan.work.tokens
        keep = turn.keep[: read + len(used)]
        self.cache.keep(seat.slot, [tokens[i] for i in keep], keep)
        request.done += len(keep)
        path = tuple([row - read for row in keep[read:]])
        scores = tuple(request.scores) if request.scores and used and request.written == len(used) else ()
        event = Event(request.id, used, text, time=now, draft=plan.draft, path=path, prompt_logprobs=scores)
        if request.finish_reason is not None:
            self._said.append(self._end(request, request.finish_reason, event))
        elif used:
            self._said.append(event)

    def _end(self, request: Request, reason: str, event: Event | None = None) -> Event:
        """Give everything back; the last event of the request."""
        now, candidate = self.clock(), self._candidate(request)
        request.charge(now)
        self._unseat(request)  # while the request can still be found: what fails here is tried again
        del self.requests[request.id]
        if request.context is not None:
            self.members.drafter.stop(request.context)
            self._despite(self.members.decoder.stop, request.state)
        self._despite(self.members.scheduler.ended, candidate)
        event = event or Event(request.id, (), self._despite(request.flush) or "")
        return event._replace(finish_reason=reason, error=request.error, time=now, stats=request.stats)

    def _despite(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - passes through
        """Of a request that ends in any case; what fails is said."""
        try:
            return function(*arguments)
        except Exception as problem:  # noqa: BLE001
            log_bug(_LOG, "the end of a request failed", problem)
            return None

    def _unseat(self, request: Request) -> None:
        """Give the slot back, if there is one."""
        if request.slot is not None:
            self.cache.close(request.slot, sound=request.error is None)
            request.slot = None

    def _clock(self, *marks: float) -> None:
        began, planning, running, committing, emitting = marks
        self.stats.steps += 1
        self.stats.plan_time += running - planning
        self.stats.run_time += committing - running
        self.stats.commit_time += emitting - committing
        self.stats.other_time += (planning - began) + (self.clock() - emitting)


def _nothing() -> None:
    """Nobody waits for a pass."""


def _foresee(seats: Sequence[Seat], plans: Sequence[Plan]) -> None:
    """Let constraints find what the rows of this pass will be judged by, while it runs."""
    for seat, plan in zip(seats, plans, strict=True):
        if seat.last and seat.context.guide is not None:
            seat.context.guide.foresee([path_to(plan.draft, node) for node in range(-1, len(plan.draft))])


def _rows(plans: Sequence[Plan]) -> int:
    """Tokens of a pass."""
    return sum(len(plan.work.tokens) for plan in plans)


def _sentence(problem: Exception) -> str:
    """What to tell whoever asked: what was foreseen says it itself, the rest goes to the log."""
    if isinstance(problem, ForerunError):
        return str(problem)
    log_bug(_LOG, "a step failed", problem)
    return f"the step failed ({type(problem).__name__}); the log says where, and at level DEBUG why."
