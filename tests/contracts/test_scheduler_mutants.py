"""The laws of schedulers can fail: every known way to be wrong breaks the one that is meant for it."""

import pytest

from forerun.config import Choice
from forerun.engine import engine
from forerun.engine.swap import Copy, copy_out
from forerun.schedulers.contract import Pick
from forerun.schedulers.fair import FairScheduler
from forerun.schedulers.fcfs import FcfsScheduler
from forerun.testing import LawError, Toy, serving


class Twice(FcfsScheduler):
    def pick(self, running, room, now):
        return [p for p in super().pick(running, room, now) for _ in range(2)]


class Greedier(FcfsScheduler):
    def pick(self, running, room, now):
        return [Pick(c.id, c.pending) for c in running]


class Idle(FcfsScheduler):
    def pick(self, running, room, now):
        return [p for p in super().pick(running, room, now) if p.count < 40]


class Forgetful(FcfsScheduler):
    def admit(self, waiting, now):
        return super().admit(waiting, now)[:2]


class Stranger(FcfsScheduler):
    def victim(self, running, now):
        return -1


class ShortFirst(FcfsScheduler):
    def admit(self, waiting, now):
        return [c.id for c in sorted(waiting, key=lambda c: c.pending)]


class UrgentFirst(FcfsScheduler):
    def admit(self, waiting, now):
        return [c.id for c in sorted(waiting, key=lambda c: c.priority)]


class PromptsFirst(FcfsScheduler):
    def pick(self, running, room, now):
        prompts = [c for c in running if not c.decoding]
        return super().pick(prompts or running, room, now)


class Saver(FcfsScheduler):
    """Copies out whatever gives its slot up."""

    def saves(self, candidate):
        return True


class Uncounted(FairScheduler):
    def _count(self, c):
        self._meet([c])

    def pick(self, running, room, now):
        return FcfsScheduler.pick(self, running, room, now)


def choice(cls):
    return Choice("scheduler", cls.__name__, cls, cls.toy())


@pytest.mark.parametrize(
    ("broken", "cls"),
    [
        *((serving.picks_fit, cls) for cls in (Twice, Greedier, Idle, Forgetful, Stranger)),
        *((serving.nobody_starves, cls) for cls in (ShortFirst, UrgentFirst)),
        (serving.decodes_never_stall, PromptsFirst),
        (serving.scopes_share_alike, FcfsScheduler),
        (serving.scopes_share_alike, Uncounted),
    ],
)
def test_a_wrong_scheduler_is_seen(broken, cls):
    with pytest.raises(LawError):
        broken(choice(cls))


def test_copies_are_put_back_to_the_bit():
    serving.preemption_does_not_matter(Toy(scheduler=choice(Saver), verifier="match"))


def test_a_spoiled_copy_is_seen(monkeypatch):
    def spoiled(cache, slot, tokens):
        copy = copy_out(cache, slot, tokens)
        return Copy(copy.tokens, [strip + 1 for strip in copy.strips])

    monkeypatch.setattr(engine, "copy_out", spoiled)
    with pytest.raises(LawError):
        serving.preemption_does_not_matter(Toy(scheduler=choice(Saver), verifier="match"))


def test_a_preemption_that_forgets_a_token_is_seen(monkeypatch):
    right = engine.Engine._preempt

    def wrong(self, request):
        right(self, request)
        request.tokens.append(request.tokens.pop(0))

    monkeypatch.setattr(engine.Engine, "_preempt", wrong)
    with pytest.raises(LawError):
        serving.preemption_does_not_matter(Toy(verifier="match"))
