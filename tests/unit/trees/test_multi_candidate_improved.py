"""What the target said before comes first, every chain is as long as its rule says, and the law stays the target's."""

import pytest
import torch

from forerun.drafting.recall import Recall
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.testing import Ask, Toy, laws
from forerun.types import Context, Draft, Outcome, Output, Sampling, Verdict, Work

TREE = "(multi-candidate-improved:candidates={},stop=(threshold:least={}))"
FIVE = "draft-model:model=toy:100:5,depth={},tree={}"
DRAFTERS = ["draft-model:model=toy:100,depth={},tree={}", "staged:model=toy:100,depth={},tree={}"]


def outcome(tokens, parents, best):
    draft = Draft(tokens, parents)
    rows = Output(torch.zeros(len(best), 5), best, (0.0,) * len(best))
    return Outcome(Work(0, ()), rows, draft, Verdict((), 0))


def test_the_newest_words_of_the_target_after_a_token_come_first():
    context = Context(0, [3, 1], 2, Sampling(), CounterRng(0))
    recall = Recall(2)
    assert recall.reminded(context).first == ()
    recall.learn(context, outcome((4, 1, 1), (-1, 0, -1), (0, 2, 3, 4)))  # said 0, 3 and 4 after a 1, and 2 after the 4
    assert recall.reminded(context).first == (4, 3)
    recall.learn(context, outcome((), (), (0,)))
    assert recall.reminded(context).first == (0, 4)
    silent = Recall(0)
    silent.learn(context, outcome((), (), (0,)))
    assert silent.reminded(context) is context
    assert not silent.said


def drafts_of(spelled, ask, model):
    rig = Toy(drafter=spelled, model=model, planner="fixed:nodes=12").build()
    drafts, inner = [], rig.engine.members.drafter.inner
    propose = inner.propose
    inner.propose = lambda *given: drafts.extend(found := propose(*given)) or found
    text = rig.write([ask])[0]
    laws.is_sound(rig)
    return drafts, text


def test_what_was_said_is_chosen_and_elder_than_what_is_drawn():
    spelled = FIVE.format(3, TREE.format(2, 0))
    drafts, _ = drafts_of(spelled, Ask((0, 1, 2), Sampling(max_tokens=30, seed=1)), ToyModel(5, 0))
    assert len(drafts[0].children(-1)) == 3  # nothing was said yet: all are drawn
    assert all(drafts[0].q)
    said = [[draft.q[node] is None for node in draft.children(-1)] for draft in drafts if draft.q]
    assert [True, True, False] in said
    assert all(chosen == sorted(chosen, reverse=True) for chosen in said)
    for draft in drafts:
        below = [node for node, parent in enumerate(draft.parents) if parent >= 0]
        assert all(draft.q[node] is not None for node in below)
        assert max(draft.depths) <= 3
        # one chain each, but none below a token that is there already
        first = [draft.tokens[node] for node in draft.children(-1)]
        for place, node in enumerate(draft.children(-1)):
            assert len(draft.children(node)) <= (first[place] not in first[:place])


def test_a_chain_ends_where_its_rule_says():
    spelled = FIVE.format(6, TREE.format(1, 0.2))
    drafts, _ = drafts_of(spelled, Ask((0, 1, 2), Sampling(max_tokens=40, seed=2)), ToyModel(5, 0))
    lengths = {max(draft.depths, default=0) for draft in drafts}
    assert len(lengths) > 2, "some chains go on where others end"
    none, _ = drafts_of(
        FIVE.format(6, TREE.format(0, 1)),
        Ask((0, 1), Sampling(max_tokens=9)),
        ToyModel(5, 0),
    )
    assert {len(draft) for draft in none} == {1}


@pytest.mark.parametrize("drafter", DRAFTERS, ids=["draft-model", "staged"])
def test_with_a_memory_the_law_is_the_targets(drafter):
    """Texts long enough for something to be recalled."""
    for seed in (0, 2):
        spelled = drafter.format(2, TREE.format(1, 0.3))
        toy = Toy(drafter=spelled, model=ToyModel(3, seed), planner="fixed:nodes=2")
        laws.exact_is_true(toy, Sampling(max_tokens=4), (0, 1))
        laws.a_draft_is_a_draft(toy)


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ("multi-candidate-improved:candidates=-1", "give 0 or more"),
        ("multi-candidate-improved:stop=level", "'level' decides no length; give a tree that ends chains"),
        ("multi-candidate-improved:stop=multi-candidate-improved", "decides no length"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(tree, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Toy(drafter=f"draft-model:model=toy:100,tree=({tree})").build()
