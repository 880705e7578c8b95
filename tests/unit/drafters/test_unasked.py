"""Steps in which nobody is asked for a draft: who need not be shown them drafts the same, shown or not."""

import pytest

from forerun.drafters import DRAFTERS
from forerun.testing import Ask, Toy
from forerun.types import Sampling

SAMPLINGS = (Sampling(temperature=0, max_tokens=60), Sampling(seed=3, max_tokens=60))
ASKED = (True, True, False, True, False, False)  # by step, in turns


def drafts(name, sampling, *, shown):
    """What a drafter drafts where it is asked now and then, and how many outcomes it was shown."""
    rig = Toy(drafter=name, verifier="match").build()
    engine = rig.engine
    drafter, decoder = engine.members.drafter.inner, engine.members.decoder
    decoder.watches, found, seen = shown, [], []  # the planner of toys would watch, too
    share, propose, observe = engine.members.planner.share, drafter.propose, drafter.observe

    def now_and_then(batch, room):
        return share(batch, room) if ASKED[engine.stats.steps % len(ASKED)] else [0] * len(batch)

    def proposed(batch, budgets):
        (draft,) = propose(batch, budgets)
        found.append((engine.stats.steps, draft.tokens, draft.parents))
        return [draft]

    def observed(batch, outcomes):
        seen.append(engine.stats.steps)
        observe(batch, outcomes)

    engine.members.planner.share = now_and_then
    drafter.propose, drafter.observe = proposed, observed
    for prompt in ((0, 1, 2, 0, 1), (2, 1, 2)):
        rig.write([Ask(prompt, sampling)])
    assert engine.stats.draft_failures == 0
    return found, len(seen)


def lazy():
    """Drafters that go by outcomes, but not by those of steps in which nobody was asked."""
    for name in DRAFTERS:
        drafter = Toy(drafter=name).build().engine.members.drafter
        if drafter.listens and not drafter.watches:
            yield name


@pytest.mark.parametrize("name", [*lazy()])
def test_steps_without_a_question_need_not_be_shown(name):
    made = 0
    for sampling in SAMPLINGS:
        told, often = drafts(name, sampling, shown=True)
        found, seldom = drafts(name, sampling, shown=False)
        assert found == told
        assert seldom < often
        made += sum(bool(tokens) for _, tokens, _ in found)
    assert made > len(ASKED)


def test_who_had_nothing_is_shown_the_rows_of_the_question():
    found, seen = drafts("token-recycling:shared=false", Sampling(temperature=0, max_tokens=2), shown=False)
    assert [tokens for _, tokens, _ in found] == [(), ()]
    assert seen == 2
