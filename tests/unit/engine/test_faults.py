"""R14 and R15: a drafter that fails costs its draft; a broken row costs its request; neighbours never change."""

import time
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch

from forerun.config import Choice, Config
from forerun.drafters.contract import Drafter, SoloDrafter
from forerun.engine.guard import _watch
from forerun.models.contract import Model
from forerun.models.load import folder_of, load_model
from forerun.models.tokenizer import Tokenizer
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.types import Constraint, Dist, Draft, Facts, PassOutput, Sampling, Segment

V = 5
MODEL = ToyModel(V, 3)
SIZES = Config(max_requests=8, max_step_tokens=512)
WORK = [Ask((0, 1, 2, 0, 1), Sampling(temperature=seed % 2, max_tokens=12, seed=seed)) for seed in range(4)]
PATIENCE = {"hangs": 0.2}  # seconds; the others have the default, so that a slow machine cannot make them fail
CACHES = ["contiguous", "paged:block_size=4"]


def chain(*tokens, **columns):
    return Draft(tokens, tuple(range(-1, len(tokens) - 1)), source="bad", **columns)


def hang():
    while True:
        time.sleep(0.01)


NONSENSE = {
    "raises": lambda: 1 / 0,
    "hangs": hang,
    "an id beyond the vocabulary": lambda: chain(V),
    "a negative id": lambda: chain(-1),
    "more nodes than the budget": lambda: chain(*[0] * 50),
    "a column of another length": lambda: Draft((0, 1), (-1,), source="bad"),
    "q of another length": lambda: chain(0, 1, q=(None,)),
    "a parent that comes later": lambda: Draft((0, 1), (1, -1), source="bad"),
    "its own parent": lambda: Draft((0,), (0,), source="bad"),
    "q that is zero at its token": lambda: chain(0, q=(Dist(np.array([0, 1, 0, 0, 0.0])),)),
    "q that is not a number": lambda: chain(0, q=(Dist(np.full(V, np.nan)),)),
    "q of a smaller vocabulary": lambda: chain(4, q=(Dist(np.array([0.5, 0.5])),)),
    "nothing at all": lambda: None,
    "no draft": lambda: "draft",
    "a list for a tuple": lambda: Draft([0, 1], [-1, 0], source="bad"),
    "ids that are no integers": lambda: chain(0.0, 1.5),
    "ids of another library": lambda: chain(np.int64(0), np.int64(1)),
    "text for ids": lambda: chain("a"),
}


class BadDrafter(SoloDrafter):
    """Proposes what its options say, for the third request only, if at all."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        what: str = "raises"
        where: str = "propose"

    def __init__(self, options, setup):
        self.options = options

    def _fail(self, where, context):
        if where == self.options.where and context.id == 2:
            return NONSENSE[self.options.what]()
        return Draft()

    def start(self, context):
        return self._fail("start", context)

    def propose_one(self, context, budget):
        return self._fail("propose", context)

    def observe(self, batch, outcomes):
        for context in batch:
            self._fail("observe", context)

    def stop(self, context):
        self._fail("stop", context)


def bad(what, where="propose"):
    return Choice("drafter", "bad", BadDrafter, BadDrafter.Options(what, where))


def patient(what):
    return replace(SIZES, draft_timeout=PATIENCE.get(what, SIZES.draft_timeout))


def plain():
    return [t.tokens for t in Toy(model=MODEL, config=SIZES).plain().build().write(WORK)]


@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize("what", NONSENSE)
def test_a_drafter_that_talks_nonsense_changes_nothing(what, verifier):
    rig = Toy(drafter=bad(what), verifier=verifier, model=MODEL, config=patient(what)).build()
    texts = rig.write(WORK)
    assert [t.tokens for t in texts] == plain()
    assert {t.finish_reason for t in texts} == {"length"}
    assert rig.engine.stats.draft_failures > 0
    assert rig.engine.cache.free() == rig.rooms[0]
    assert all(type(token) is int for t in texts for token in t.tokens)


@pytest.mark.parametrize("where", ["start", "observe", "stop"])
@pytest.mark.parametrize("what", ["raises", "hangs"])
def test_a_drafter_that_fails_elsewhere_changes_nothing(what, where):
    rig = Toy(drafter=bad(what, where), model=MODEL, config=patient(what)).build()
    assert [t.tokens for t in rig.write(WORK)] == plain()
    assert rig.engine.stats.draft_failures > 0


def test_a_drafter_that_answers_too_few_changes_nothing():
    class Short(Drafter):
        facts, Options = Facts(), BadDrafter.Options

        def __init__(self, options, setup):
            pass

        def propose(self, batch, budgets):
            return [Draft.chain([0], "bad")] * (len(batch) - 1)

    rig = Toy(drafter=Short, model=MODEL, config=SIZES).build()
    assert [t.tokens for t in rig.write(WORK)] == plain()
    assert rig.engine.stats.draft_failures > 0
    assert {e.source for n in range(4) for event in rig.said[n] for e in event.emissions} == {"target"}


def test_a_watch_ends_with_its_watchdog():
    """Between two looks the watchdog may go: there is nothing to look at, and then the watch ends."""
    looks, waited = iter([False, False, True]), []

    class Gone:
        def wait(self, timeout):
            waited.append(timeout)
            return next(looks)

    _watch(lambda: None, Gone(), 0.25)
    assert waited == [0.25] * 3


def test_a_drafter_that_recovers_is_asked_again():
    class Moody(BadDrafter):
        calls = 0

        def propose_one(self, context, budget):
            self.calls += 1
            if self.calls <= 3:
                raise ValueError
            return Draft.chain([context.tokens[-1]], "moody")

    sampling = Sampling(max_tokens=50, temperature=0)
    rig = Toy(drafter=Moody, model=MODEL, config=SIZES).build()
    text = rig.write([Ask((0,), sampling)])[0]
    assert rig.engine.stats.draft_failures == 3
    assert rig.said[0][-1].stats.drafted > 0
    assert text.tokens == Toy(model=MODEL).plain().build().write([Ask((0,), sampling)])[0].tokens


# R14


class Poisoned(Model):
    """A toy whose logits after one token are not numbers; the model of one request in a batch, so to speak."""

    def __init__(self, inner, token, value):
        self.inner, self.info, self.words, self.token, self.value = inner, inner.info, inner.words, token, value

    def forward(self, work, cache):
        output = self.inner.forward(work, cache)
        rows = work.tokens if work.logits is None else work.tokens[work.logits]
        logits = torch.where((rows == self.token)[:, None], self.value, output.logits)
        return PassOutput(logits, output.hidden)


POISON = V - 1
KINDS = {
    "greedy": {"temperature": 0},
    "sampled": {},
    "shaped": {"top_k": 3, "repetition_penalty": 1.2},
    "grammar": {"constraint": Constraint("regex", "([ab][cd]|[cd][ab])*")},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("drafter", ["none", "ngram:min_match=1", f"draft-model:model=toy:9:{V}"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_row_ends_its_own_request_only(kind, value, drafter, cache):
    """The neighbours may not write the token that breaks the model; the victim's prompt ends with it."""
    allowed = tuple(range(POISON))
    work = [
        Ask((0, 1, 2, seed % 4), Sampling(max_tokens=10, seed=seed, allowed_tokens=allowed, **KINDS[kind]))
        for seed in range(3)
    ]
    toy = Toy(drafter=drafter, cache=cache, model=Poisoned(MODEL, POISON, value), config=SIZES)
    wanted = toy.build().write(work)
    rig = toy.build()
    victim = replace(work[0], prompt=(0, 1, POISON))
    numbers = [rig.add(ask) for ask in (work[0], victim, work[1], work[2])]
    rig.finish()
    texts = [rig.text(number) for number in numbers]
    assert texts[1].finish_reason == "error"
    assert "finite" in texts[1].error
    assert texts[1].tokens == ()
    assert [texts[i] for i in (0, 2, 3)] == wanted
    assert all(0 <= token < V for text in texts for token in text.tokens)
    assert rig.engine.stats.failed_requests == 1
    assert all(cache.free() == room for cache, room in zip(rig.caches, rig.rooms, strict=True))
    rig.engine.cache.check()


def test_what_a_broken_pass_wrote_is_not_found():
    """The same prompt again, and a longer one: nothing of the pass that failed lies in the cache for others to read."""
    prompt = (0, 1, 2, 0, 1, 2, 0, 1, POISON)
    rig = Toy(cache="paged:block_size=4", model=Poisoned(MODEL, POISON, float("nan")), config=SIZES).build()
    (first,) = rig.write([Ask(prompt, Sampling(max_tokens=2, seed=1))])
    assert first.finish_reason == "error"
    allowed = Sampling(max_tokens=2, seed=1, allowed_tokens=(0, 1))
    _, again = rig.write([Ask(prompt, allowed), Ask(prompt[:-1], allowed)])
    assert [rig.said[number][-1].stats.cached for number in (1, 2)] == [0, 0]
    assert again.finish_reason == "length"


STORIES = ["Once upon a time there was a dog", "Tom and Ann went to", "She said that", "The sun was warm and the cat"]


@pytest.fixture(scope="module")
def small():
    """The smaller bundled model, and prompts for it."""
    folder = folder_of("reference-drafter")
    prompts = [tuple(Tokenizer.from_folder(folder).encode(story)) for story in STORIES]
    return load_model(folder), prompts


def spoil(cache, slot, row, place, value):
    """One number of a slot's row: `place` is (keys or values, layer, head, dim)."""
    part, layer, head, dim = place
    starts = cache.runs(Segment(slot, 0, 0, cache.length(slot), 0, None))
    rows = [first + i for first, count in starts for i in range(count)]
    getattr(cache.rows, part)[layer][head, rows[row], dim] = value


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("drafter", ["none", "ngram:min_match=1"])
@pytest.mark.parametrize(
    ("part", "value"), [("keys", float("nan")), ("values", float("nan")), ("values", float("inf"))], ids=str
)
def test_a_broken_cell_ends_its_own_request_only(part, value, drafter, cache, small):
    """One number of what a request has read; its neighbours go on, and who asks the same again is not told of it."""
    model, prompts = small
    for layer, row in product(range(model.info.num_layers), (0, -1)):
        config = Config(max_requests=8, max_step_tokens=64)
        toy = Toy(drafter=drafter, cache=cache, model=model, config=config, verifier="match")
        work = [Ask(p, Sampling(max_tokens=6, temperature=i % 2, seed=i)) for i, p in enumerate(prompts)]
        wanted, rig = toy.build().write(work), toy.build()
        numbers = [rig.add(ask) for ask in work]
        rig.step()
        slot = rig.engine.requests[numbers[0]].slot
        spoil(rig.engine.cache, slot, row, (part, layer, 0, 1), value)
        rig.finish()
        texts = [rig.text(number) for number in numbers]
        assert texts[0].finish_reason == "error"
        assert "finite" in texts[0].error
        assert texts[1:] == wanted[1:]
        assert rig.engine.stats.failed_requests == 1
        assert rig.write(work[:1]) == wanted[:1], "the broken cell was found again"
        assert rig.engine.cache.free() == rig.rooms[0]
        rig.engine.cache.check()


def test_an_infinite_key_is_not_found_again(small):
    """It may hide its token, which no logits tell; who asks the same later reads it anew all the same."""
    model, prompts = small
    work, hidden = [Ask(prompts[0], Sampling(max_tokens=6, temperature=0))], 0
    toy = Toy(cache="paged:block_size=4", model=model, config=Config(max_step_tokens=64), verifier="match")
    wanted = toy.build().write(work)
    for value, layer, dim in product((float("inf"), -float("inf")), range(model.info.num_layers), range(0, 64, 6)):
        rig = toy.build()
        number = rig.add(work[0])
        rig.step()
        spoil(rig.engine.cache, rig.engine.requests[number].slot, 0, ("keys", layer, 0, dim), value)
        rig.finish()
        hidden += rig.text(number).finish_reason != "error"
        assert rig.write(work) == wanted
        rig.engine.cache.check()
    assert hidden


def test_a_row_that_breaks_later_keeps_what_was_written():
    rig = Toy(model=Poisoned(MODEL, POISON, float("nan"))).build()
    texts = rig.write([Ask((0,), Sampling(seed=seed, max_tokens=40)) for seed in range(8)])
    assert all(t.finish_reason == ("error" if POISON in t.tokens else "length") for t in texts)
    assert all(t.tokens.index(POISON) == len(t.tokens) - 1 for t in texts if POISON in t.tokens)


@pytest.fixture
def broken_drafts(monkeypatch):
    """Engines whose draft model breaks after the token POISON: `broken_drafts(value, tree)`."""

    def build(value, tree):
        monkeypatch.setattr("forerun.models.toy.toy_by_name", lambda _: Poisoned(ToyModel(V, 9), POISON, value))
        drafter = f"draft-model:model=toy:9,depth=3,tree={tree}"
        return Toy(drafter=drafter, verifier="match", model=MODEL, config=SIZES).build()

    return build


VALUES = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("tree", ["chain", "level", "eagle2"])
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_a_broken_draft_model_costs_its_drafts(value, tree, broken_drafts):
    """No number in the small model's row: no token is drawn from it, decoding goes on, and everything is given back."""
    rig = broken_drafts(value, tree)
    assert [t.tokens for t in rig.write(WORK)] == plain()
    assert rig.engine.stats.draft_failures > 0
    assert [cache.free() for cache in rig.caches] == rig.rooms


@pytest.mark.parametrize("tree", ["chain", "level", "eagle2"])
@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_draft_costs_its_own_request_only(kind, value, tree, broken_drafts):
    """The neighbours may not write the token that breaks the draft model; the victim's prompt ends with it."""
    sampling = Sampling(max_tokens=10, allowed_tokens=tuple(range(POISON)), **KINDS[kind])
    work = [Ask((0, 1, 2, seed % 4), replace(sampling, seed=seed)) for seed in range(3)]
    victim = Ask((0, 1, POISON), replace(sampling, seed=3, max_tokens=30))
    alone, rig = broken_drafts(value, tree), broken_drafts(value, tree)
    wanted, (mine,) = alone.write(work), broken_drafts(value, tree).write([victim])
    numbers = [rig.add(ask) for ask in (work[0], victim, work[1], work[2])]
    drafted = []
    propose = rig.engine.members.drafter.inner.propose

    def listen(batch, budgets):
        drafted.append({c.id: d for c, d in zip(batch, propose(batch, budgets), strict=True)})
        return [drafted[-1][c.id] for c in batch]

    rig.engine.members.drafter.inner.propose = listen
    rig.finish()
    texts = [rig.text(number) for number in numbers]
    assert [texts[i] for i in (0, 2, 3)] == wanted
    assert texts[1].tokens == mine.tokens
    assert alone.engine.stats.draft_failures == 0
    assert rig.engine.stats.draft_failures == 1
    first = drafted[0]
    assert len(first[1]) == 0
    assert "not finite" in first[1].error
    assert all(len(first[i]) > 0 and first[i].error is None for i in (0, 2, 3))
    stats, theirs = ([r.said[n][-1].stats for n in ns] for r, ns in ((rig, (0, 2, 3)), (alone, range(3))))
    assert stats == theirs
    assert rig.said[1][-1].stats.drafted > 0, "the victim was never drafted for again"


@pytest.mark.parametrize("what", sorted(set(NONSENSE) - {"raises", "hangs"}))
def test_a_draft_that_is_none_costs_its_own_request_only(what):
    """One request's nonsense is counted once per step; the drafts of the others are used."""

    class Mixed(BadDrafter):
        def propose_one(self, context, budget):
            return self._fail("propose", context) if context.id == 2 else Draft.chain([context.tokens[-1]], "good")

    rig = Toy(drafter=Choice("drafter", "mixed", Mixed, Mixed.Options(what)), model=MODEL, config=SIZES).build()
    rig.write([replace(ask, sampling=replace(ask.sampling, temperature=0)) for ask in WORK])
    stats = [rig.said[number][-1].stats for number in range(4)]
    assert stats[2].drafted == 0
    assert all(stats[i].drafted > 0 for i in (0, 1, 3))
    assert rig.engine.stats.draft_failures == stats[2].steps - 1  # there is no draft for the last token


def test_a_draft_ends_where_bans_leave_nothing():
    """The draft of one request walks into a dead end; it ends there, and the neighbour's goes on."""
    dead = Sampling(temperature=0, max_tokens=2, allowed_tokens=(0, 1), bad_words=((0, 0), (0, 1)), logit_bias={0: 50})
    rig = Toy(drafter=f"draft-model:model=toy:9:{V},depth=3", model=MODEL, config=SIZES).build()
    rig.write([Ask((1,), dead), Ask((0,), Sampling(temperature=0, max_tokens=12))])
    assert rig.engine.stats.draft_failures == 0
