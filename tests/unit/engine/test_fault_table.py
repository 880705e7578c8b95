"""R25: every call of a request's path raises once; what it was for ends with an error, and the engine lives."""

import inspect
from collections import Counter

import pytest

from forerun.config import Config
from forerun.engine.request import Request
from forerun.engine.text import Detokenizer, StopFinder
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.testing import Ask, Toy
from forerun.types import Sampling

TOY = Toy(
    model=ToyModel(5, 3),
    drafter="ngram:min_match=1",
    verifier="match",  # so that a neighbour's text is the same, whatever was drafted
    scheduler="fastswitch:turn=3",
    cache="paged:block_size=4,blocks=10,poison=true",
    config=Config(max_requests=3, max_step_tokens=16),
)
ASKS = [
    Ask((0, 1, 2, 0, 1)[: 2 + i % 4], Sampling(temperature=i % 2, max_tokens=10, seed=i, stop=("zz",)))
    for i in range(6)
]
PLACES = {
    "cache": lambda e: e.cache,
    "scheduler": lambda e: e.members.scheduler,
    "planner": lambda e: e.members.planner,
    "decoder": lambda e: e.members.decoder,
    "drafter": lambda e: e.members.drafter.inner,
    "verifier": lambda e: e.members.decoder.parts.verifier,
    "runner": lambda e: e.runner,
    "model": lambda e: e.runner.model,
}
CLASSES = {"detokenizer": Detokenizer, "stops": StopFinder, "request": Request, "rng": CounterRng}


class FaultError(Exception):
    """What no code expects."""


def functions(kind):
    names = [name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")]
    return [name for name in names if name not in {"toy", "check"}]


class Trap:
    """Counts calls of every place, and raises at one of them."""

    def __init__(self, place="", name="", at=-1):
        self.aim, self.seen, self.sprung = (place, name, at), Counter(), False

    def wrap(self, place, name, call):
        def watched(*args, **kwargs):
            self.seen[place, name] += 1
            if (place, name, self.seen[place, name]) == self.aim:
                self.sprung = True
                raise FaultError("of this test")
            return call(*args, **kwargs)

        return watched

    def set(self, engine, patch):
        for place, of in PLACES.items():
            found = of(engine)
            for name in functions(type(found)):
                patch.setattr(found, name, self.wrap(place, name, getattr(found, name)), raising=False)
        for place, kind in CLASSES.items():
            for name in functions(kind):
                patch.setattr(kind, name, self.wrap(place, name, getattr(kind, name)))


def undisturbed():
    """What the requests write where nothing fails, and how often everything is called."""
    with pytest.MonkeyPatch.context() as patch:
        rig, trap = TOY.build(), Trap()
        trap.set(rig.engine, patch)
        texts = rig.write(ASKS)
    assert rig.engine.stats.preemptions
    return [text.tokens for text in texts], trap.seen


TEXTS, SEEN = undisturbed()
SPARED = {("decoder", "stop"), ("scheduler", "ended")}  # they hear of requests that are over anyway


def test_the_table_is_not_empty():
    assert SEEN.keys() >= {("cache", "close"), ("scheduler", "saves"), ("planner", "cut")}
    assert len(SEEN) > 40


@pytest.mark.parametrize(("place", "name"), sorted(SEEN))
def test_a_call_that_fails_costs_who_it_was_for(place, name, monkeypatch):
    """The first of its kind, one amid, the last: others write what they would, all is given back, and new ones come."""
    count = SEEN[place, name]
    for at in sorted({1, (count + 1) // 2, count}):
        with monkeypatch.context() as patch:
            rig, trap = TOY.build(), Trap(place, name, at)
            trap.set(rig.engine, patch)
            found = rig.write(ASKS)
        assert trap.sprung
        errors = {text.error for text in found if text.finish_reason == "error"}
        assert errors <= {"the step failed (FaultError); the log says where, and at level DEBUG why."}
        assert bool(errors) or place == "drafter" or (place, name) in SPARED
        assert [t.tokens for t, whole in zip(found, TEXTS, strict=True) if t.tokens != whole and not t.error] == []
        rig.engine.cache.check()
        assert rig.engine.cache.free() == rig.rooms[0]
        assert [text.tokens for text in rig.write(ASKS)] == TEXTS
