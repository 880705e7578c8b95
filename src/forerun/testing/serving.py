"""The laws of schedulers, one function each: through the real engine, with a toy target and a clock that counts looks.

Does not: ask how long anybody waits, beyond that it ends.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, product

from forerun.build import setup_for
from forerun.config import Choice
from forerun.schedulers.contract import Candidate, Scheduler
from forerun.testing.laws import PROMPTS, SEEDED, LawError, is_sound, require, spelled
from forerun.testing.toy import COSTS, Ask, Rig, Tokens, Toy
from forerun.types import Event, Sampling

SEATS = 2
CROWD = 6  # requests of a stream that never ends
BOUND = 1500  # steps
TIGHT = "paged:block_size=4,blocks=14"  # of which four requests in company need more


def opened(scheduler: Choice) -> Scheduler:
    """The scheduler without an engine."""
    toy = Toy()
    setup = replace(setup_for(toy.config, toy.model), costs=lambda: COSTS)
    made: Scheduler = scheduler.member(scheduler.options, setup)
    return made


def candidates(pending: Sequence[int], *, running: bool = True) -> list[Candidate]:
    """Requests that differ in all that a scheduler may look at."""
    return [
        Candidate(i, i, n, running, (i % 3,) * (4 + i), 5 - i, 20, f"scope {i % 2}", i % 3 - 1, i % 2 * 4.0, i / 8)
        for i, n in enumerate(pending)
    ]


def picks_fit(scheduler: Choice) -> None:
    """Each request at most once and by what it has pending; within the room, and somebody always runs."""
    for pending, room in product(((1,), (5, 1, 9), (1, 1, 1, 1), (40,), (3, 40, 1)), (1, 2, 7, 100)):
        asked, running, waiting = opened(scheduler), candidates(pending), candidates(pending, running=False)
        told = f"scheduler {scheduler.spelling!r} with pending {pending} and room for {room}"
        admitted = asked.admit(waiting, 1.0)
        ids = [c.id for c in running]
        require(sorted(admitted) == ids, f"{told} admits {admitted} and not everybody, each once.")
        picks = asked.pick(running, room, 1.0)
        require(picks and sum(p.count for p in picks) <= room, f"{told} picks {picks}; pick somebody, within the room.")
        require(len({p.id for p in picks}) == len(picks), f"{told} picks {picks}; pick each request once.")
        require(all(1 <= p.count <= pending[p.id] for p in picks), f"{told} picks {picks}; pick what is pending.")
        gone = [asked.victim(running, 1.0), *asked.yielding(running, [], 1.0)]
        require(set(gone) <= set(ids), f"{told} takes slots of {gone}; take them of those that run.")


def nobody_starves(scheduler: Choice) -> None:
    """A large request of low priority ends, though small and urgent ones of another scope never stop coming."""
    rig = Toy(scheduler=scheduler).resized(max_requests=SEATS, max_step_tokens=8).build()
    small = Sampling(temperature=0, max_tokens=3)
    rich = [_add(rig, (2, 0), small, "rich", -2) for _ in range(CROWD)]
    rig.step()
    poor = _add(rig, (0, 1) * 15, replace(small, max_tokens=24), "poor", 2)
    for _ in range(BOUND):
        rich = [number for number in rich if number in rig.engine.requests]
        rich += [_add(rig, (2, 0), small, "rich", -2) for _ in range(CROWD - len(rich))]
        rig.step()
        if poor not in rig.engine.requests:
            return
    raise LawError(f"scheduler {scheduler.spelling!r} lets a request starve; let who waits grow urgent.")


def _add(rig: Rig, prompt: Tokens, sampling: Sampling, scope: str, priority: int = 0) -> int:
    number = rig.engine.add(prompt, sampling, scope, priority=priority, pace=10.0)
    rig.said[number] = []
    return number


def decodes_never_stall(scheduler: Choice) -> None:
    """Who writes does so in every step, whatever prompts come meanwhile."""
    rig = Toy(scheduler=scheduler).resized(max_requests=8, max_step_tokens=12).build()
    writers = [_add(rig, (i,), Sampling(temperature=0, max_tokens=24), f"scope {i}") for i in range(3)]
    while not all(rig.said[number] for number in writers):
        rig.step()
    for step in range(20):
        if step % 4 == 0:
            _add(rig, (0, 1) * 12, Sampling(temperature=0, max_tokens=4), "")
        before = [len(rig.said[number]) for number in writers]
        rig.step()
        stalled = [n for n, count in zip(writers, before, strict=True) if len(rig.said[n]) == count and _busy(rig, n)]
        require(not stalled, f"scheduler {scheduler.spelling!r} lets {stalled} wait for prompts; decode them too.")


def _busy(rig: Rig, number: int) -> bool:
    return number in rig.engine.requests


def scopes_share_alike(scheduler: Choice) -> None:
    """Of two scopes that always wait one has four times the requests; it is served no more, but for who has a seat."""
    rig = Toy(scheduler=scheduler).resized(max_requests=SEATS, max_step_tokens=8).build()
    prompt, longest = (0, 1, 2, 0), 11
    served, owner = Counter[str](), dict[int, str]()
    for number, scope in zip(range(200), cycle(("many", "many", "many", "few", "many"))):
        sampling = Sampling(temperature=0, max_tokens=longest - number % 3, ignore_eos=True)
        owner[_add(rig, prompt, sampling, scope)] = scope
    for _ in range(200):
        for event in _step(rig):
            served[owner[event.request]] += len(event.emissions)
        apart = abs(served["many"] - served["few"])
        most = 2 * SEATS * (len(prompt) + longest)
        require(apart <= most, f"scheduler {scheduler.spelling!r} serves {dict(served)}; keep scopes within {most}.")


def _step(rig: Rig) -> Iterator[Event]:
    rig.step()
    for events in rig.said.values():
        yield from events
        events.clear()


def preemption_does_not_matter(toy: Toy) -> None:
    """Greedy and seeded texts are the same where requests must give their memory up as where there is enough."""
    asks = [Ask(prompt, replace(SEEDED, seed=i, temperature=i % 2)) for i, prompt in enumerate(PROMPTS)]
    alone = [toy.build(1).write([ask])[0].tokens for ask in asks]
    rig = replace(toy, cache=TIGHT).build(len(asks))
    texts = [text.tokens for text in rig.write(asks)]
    is_sound(rig)
    require(rig.engine.stats.preemptions, f"{spelled(toy)} never runs out of memory, so that this shows nothing.")
    require(texts == alone, f"{spelled(toy)} writes {texts} where memory is short, and alone {alone}.")
