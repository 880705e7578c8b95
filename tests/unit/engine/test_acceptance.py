"""R16, B9: what happened to a request's cache costs no acceptance; nothing but the speed would tell.

Prefixes that were found in the cache have their test beside it.
"""

from dataclasses import replace

import pytest

from forerun.config import Config
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.types import Sampling

TOY = Toy(
    drafter="draft-model:model=toy:3:5,depth=3",
    verifier="match",
    model=ToyModel(5, 3, context_length=1200),
    cache="paged:block_size=4",
    config=Config(max_requests=8, max_step_tokens=256),
)
ASKS = [Ask((i % 5, (i + 1) % 5, i % 3), Sampling(temperature=i % 2, seed=i, max_tokens=60)) for i in range(8)]
DRAFTERS = [
    TOY.drafter,
    "ngram:min_match=1",
    "suffix-decoding",
    "token-recycling",
    "draft-model:model=toy:3:5,tree=level",
]


def taken(toy, asks):
    """Accepted tokens per draft, texts, and the engine's statistics."""
    rig = toy.build()
    texts = [text.tokens for text in rig.write(asks)]
    stats = [events[-1].stats for events in rig.said.values()]
    return sum(s.accepted for s in stats) / sum(s.reached[1] for s in stats), texts, rig.engine.stats


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_turns_cost_no_acceptance(drafter):
    cold, texts, _ = taken(replace(TOY, drafter=drafter), ASKS)
    turns = replace(TOY, drafter=drafter, scheduler="fastswitch:turn=6").resized(max_requests=3)
    after, same, stats = taken(turns, ASKS)
    assert same == texts
    assert stats.preemptions > 20
    assert after == pytest.approx(cold, rel=0.03)


@pytest.mark.parametrize("drafter", [DRAFTERS[0], DRAFTERS[-1]])
def test_a_long_context_costs_no_acceptance(drafter, monkeypatch):
    """The toys look at two tokens, so that a thousand before them change neither text nor drafts."""
    monkeypatch.setattr("forerun.models.toy.toy_by_name", lambda _: ToyModel(5, 3, context_length=1200))
    filler = tuple(i * i % 7 % 5 for i in range(1000))
    short = [replace(ask, sampling=replace(ask.sampling, temperature=0)) for ask in ASKS]
    cold, texts, _ = taken(replace(TOY, drafter=drafter), short)
    long, same, _ = taken(replace(TOY, drafter=drafter), [replace(a, prompt=filler + a.prompt) for a in short])
    assert long == pytest.approx(cold, rel=0.03)
    assert same == texts


def test_a_drafter_that_forgets_is_seen(monkeypatch):
    """Wrong drafts for every other request change no text, and this figure."""
    cold, _, _ = taken(TOY, ASKS)
    propose = DraftModelDrafter.propose

    def forgetful(drafter, batch, budgets):
        drafts = propose(drafter, batch, budgets)
        wrong = [replace(draft, tokens=tuple((t + 1) % 5 for t in draft.tokens)) for draft in drafts]
        return [w if c.id % 2 else d for c, d, w in zip(batch, drafts, wrong, strict=True)]

    monkeypatch.setattr(DraftModelDrafter, "propose", forgetful)
    after, _, _ = taken(TOY, ASKS)
    assert after < 0.97 * cold
