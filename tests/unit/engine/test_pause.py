"""Requests that take turns write the same, whatever a drafter or a decoder holds of one that lost its slot."""

from dataclasses import replace

import pytest

from forerun.decoders import DECODERS
from forerun.drafters import DRAFTERS
from forerun.engine import engine
from forerun.testing import Ask, Toy
from forerun.testing.laws import PROMPTS, SEEDED, is_sound

TURNS = "fastswitch:turn=2"
ASKS = [Ask(prompt, replace(SEEDED, seed=i, temperature=i % 2)) for i, prompt in enumerate(PROMPTS)]


def written(toy):
    rig = toy.build()
    texts = [text.tokens for text in rig.write(ASKS)]
    is_sound(rig)
    return rig, texts


@pytest.mark.parametrize(
    "members",
    [*({"drafter": name, "verifier": "match"} for name in DRAFTERS), *({"decoder": name} for name in DECODERS)],
    ids=lambda members: next(iter(members.values())),
)
def test_turns_change_no_text(members):
    toy = Toy(**members)
    _, wanted = written(toy)
    rig, texts = written(replace(toy, scheduler=TURNS).resized(max_requests=2))
    assert texts == wanted
    assert rig.engine.stats.preemptions > len(ASKS)


def test_an_abort_between_turns_frees_everything():
    toy = Toy(drafter="draft-model:model=toy:100,depth=2", scheduler=TURNS).resized(max_requests=2)
    for steps in range(12):
        rig = toy.build()
        numbers = [rig.add(ask) for ask in ASKS]
        for _ in range(steps):
            rig.step()
        for number in numbers:
            rig.engine.abort(number)
        rig.finish()
        is_sound(rig)


@pytest.mark.parametrize("fits", [True, False])
def test_what_was_copied_is_put_back_or_computed_again(fits, monkeypatch):
    toy = Toy(cache="paged:block_size=4,prefix=false")
    _, wanted = written(toy)
    if not fits:
        monkeypatch.setattr(engine, "copy_in", lambda *_: False)
    rig, texts = written(replace(toy, scheduler=TURNS).resized(max_requests=2))
    assert texts == wanted
    out = rig.engine.stats.rows - sum(len(ask.prompt) + len(text) - 1 for ask, text in zip(ASKS, texts, strict=True))
    assert (out == 0) == fits  # rows that went through the target more than once
    assert rig.engine.stats.moved > 0
