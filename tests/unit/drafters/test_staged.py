"""What a cheaper drafter expects spares passes of the small model, and changes no draft."""

from dataclasses import replace

import pytest
import torch

from forerun.drafters.cascade_drafting import deepest, joined
from forerun.drafters.staged import _Known
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy, laws
from forerun.types import Dist, Draft, Sampling

COPY = "(ngram:width=4,min_match=1,max_match=3)"
SMALL = "draft-model:model=toy:100,depth={}{}"
STAGED = "staged:model=toy:100,depth={}{},by=" + COPY
TREES = ["chain", "svip", "(swor:widths=[2,1])", "dyspec", "eagle2"]
WIDE = ["(level:width=2)", "(sbs:width=2)"]  # which look behind two nodes at every level
CYCLE = ToyModel(3, 5)  # whose greedy text soon repeats itself
ASKS = [
    Ask((0, 1, 2, 0, 1), Sampling(temperature=temperature, seed=seed, max_tokens=24, **extra))
    for seed, (temperature, extra) in enumerate(
        [(0, {}), (1, {}), (0.7, {"frequency_penalty": 0.3}), (0, {"no_repeat_ngram": 5, "min_tokens": 9})]
    )
]


def texts_and_passes(spelled, asks=ASKS, **resized):
    """Texts with who guessed what, and how many passes the small model ran."""
    rig = Toy(drafter=spelled, model=CYCLE).resized(**resized).build()
    model, seen = rig.runners[0].model, []
    forward = model.forward
    model.forward = lambda *given: seen.append(1) or forward(*given)
    said = [rig.write([ask])[0] for ask in asks]
    laws.is_sound(rig)
    return [(text.tokens, [e.source != "target" for e in text.emissions]) for text in said], len(seen)


@pytest.mark.parametrize("passes", ["ragged", "padded"])
@pytest.mark.parametrize("tree", [*TREES, *WIDE])
def test_the_drafts_are_those_of_the_small_model_in_fewer_passes(tree, passes):
    plain, before = texts_and_passes(SMALL.format(4, f",tree={tree}"), passes=passes)
    staged, after = texts_and_passes(STAGED.format(4, f",tree={tree}"), passes=passes)
    assert staged == plain
    assert after < before or (tree in WIDE and after == before)


def test_a_guess_that_comes_true_leaves_one_pass_per_draft():
    """The small model is the target, and its greedy text a cycle that the look-up knows."""
    ask = [Ask((0, 1, 2) * 3, Sampling(temperature=0, max_tokens=30))]
    _, before = texts_and_passes("draft-model:model=toy:5,depth=4", ask)
    _, after = texts_and_passes(f"staged:model=toy:5,depth=4,by={COPY}", ask)
    assert before / after > 2


def test_answers_of_another_place_are_seen(monkeypatch):
    """The comparison can fail: what follows is another text, though still one of the target's law."""
    right = _Known.output
    monkeypatch.setattr(_Known, "output", lambda known, paths: right(known, [path[:-1] for path in paths]))
    assert texts_and_passes(STAGED.format(4, ""))[0] != texts_and_passes(SMALL.format(4, ""))[0]
    laws.exact_is_true(Toy(drafter=STAGED.format(2, "")), laws.SAMPLINGS["plain"])


def test_a_slot_without_room_for_guesses_still_drafts():
    ask = Ask((0, 1, 2) * 18, Sampling(temperature=0, max_tokens=10))
    small = ToyModel(3, 5, context_length=64)
    rig = Toy(drafter=STAGED.format(8, ""), model=small).build()
    cache = rig.runners[0].cache
    reserve, refused = cache.reserve, []

    def tight(slot, count):
        refused.append(cache.length(slot) + cache.unjudged(slot) + count > 62)
        return not refused[-1] and reserve(slot, count)

    cache.reserve = tight
    text = rig.write([ask])[0]
    laws.is_sound(rig)
    assert text.tokens == Toy(model=small).build().write([ask])[0].tokens
    assert any(refused)
    assert not all(refused)


def test_broken_logits_end_the_draft_alone():
    rig = Toy(drafter=STAGED.format(3, ""), model=CYCLE).build()
    model = rig.runners[0].model
    model._logits = torch.full_like(model._logits, torch.nan)
    text = rig.write([replace(ASKS[0])])[0]
    assert text.error is None
    assert rig.engine.stats.draft_failures > 0


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_pass_that_fails_costs_one_draft(failing):
    rig = Toy(drafter=STAGED.format(4, "").replace("toy:100", "toy:5"), model=CYCLE).build()
    runner, passes = rig.runners[0], []
    run = runner.run

    def fails(work):
        passes.append(work)
        return run(work) if len(passes) != failing + 1 else 1 / 0

    runner.run = fails
    text = rig.write([ASKS[0]])[0]
    assert text.tokens == Toy(model=CYCLE).build().write([ASKS[0]])[0].tokens
    assert rig.engine.stats.draft_failures == 1
    assert len(passes) > failing + 2, "drafting went on"
    assert any(e.source == "staged" for e in text.emissions)
    assert [cache.free() for cache in rig.caches] == rig.rooms


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("staged:", "names none; give model=FOLDER"),
        ("staged:model=toy:0:4", "shares the target's tokenizer"),
        ("staged:model=toy:0,guess=0", "a guess of 1 or more"),
        ("staged:model=toy:0,depth=-1", "0 or more levels"),
        ("staged:model=toy:0,by=(draft-model:model=toy:1)", "use by=ngram"),
        ("cascade-drafting:of=[]", "name some"),
        ("cascade-drafting:of=[ngram,(draft-model:model=toy:1)]", "use staged or ngram in its place"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(spelled, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Toy(drafter=spelled).build()


# The horizontal cascade

Q = Dist(CYCLE.probs((0, 1)))
FIRST = Draft((0, 1, 2), (-1, 0, -1), (Q, Q, Q), (0.9, 0.8, 0.7), "first")


def test_the_next_drafter_goes_on_behind_the_deepest_node():
    assert deepest(FIRST) == 1
    assert deepest(Draft()) == -1
    both = joined(FIRST, 1, Draft.chain((2, 2), "next"))
    assert both.tokens == (0, 1, 2, 2, 2)
    assert both.parents == (-1, 0, -1, 1, 3)
    assert both.q == (Q, Q, Q, None, None)
    assert both.confidence == (0.9, 0.8, 0.7, 0.5, 0.5)
    assert both.source == ("first",) * 3 + ("next",) * 2
    assert joined(Draft(), -1, FIRST).parents == FIRST.parents


def test_early_tokens_are_the_small_models_and_late_ones_copied():
    spelled = f"cascade-drafting:of=[(staged:model=toy:5,depth=2,by={COPY}),{COPY}]"
    rig = Toy(drafter=spelled, model=CYCLE).build()
    text = rig.write([Ask((0, 1, 2) * 3, Sampling(temperature=0, max_tokens=30))])[0]
    laws.is_sound(rig)
    sources = [e.source for e in text.emissions]
    assert sources[:8] == ["staged", "staged", "ngram", "target"] * 2


def test_a_cascade_of_two_small_models_is_exact():
    """The second goes on behind a draft whose tokens it has not seen before, with numbers of its own."""
    second = "(staged:model=toy:101,depth=1,by=(ngram:width=1,min_match=1,max_match=1))"
    spelled = f"cascade-drafting:of=[(draft-model:model=toy:100,depth=1),{second}]"
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(Toy(drafter=spelled), sampling)
    laws.a_draft_is_a_draft(Toy(drafter=spelled))
