"""A planner may drop nodes by their confidence, with descendants and younger siblings: the law stays the target's."""

import pytest

from forerun.config import Choice
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.testing import LawError, Toy, laws
from forerun.trees import TREES
from forerun.types import Draft

DRAWN = [name for name in TREES if TREES[name].facts.draws]


def cut(draft, least, guess):
    """What is left where nodes of less confidence go."""
    kept, at = [], {-1: -1}
    for node, parent in enumerate(draft.parents):
        elders = [child for child in draft.children(parent) if child < node]
        if parent in at and all(elder in at for elder in elders) and guess(draft, node) >= least:
            at[node] = len(kept)
            kept.append(node)
    columns = [tuple(column[node] for node in kept) for column in (draft.tokens, draft.q, draft.confidence)]
    return Draft(columns[0], tuple(at[draft.parents[node]] for node in kept), *columns[1:])


def cutting(tree, guess, least):
    """An engine whose drafts are cut, and how many nodes went and stayed."""
    counts = [0, 0]

    class Cutting(DraftModelDrafter):
        def propose(self, batch, budgets):
            found = []
            for draft in super().propose(batch, budgets):
                found.append(cut(draft, least, guess) if draft.q else draft)
                counts[0] += len(draft) - len(found[-1])
                counts[1] += len(found[-1])
            return found

    options = DraftModelDrafter.Options(model="toy:100", depth=3)
    chosen = Choice("tree", tree, TREES[tree], TREES[tree].toy())
    drafter = Choice("drafter", "cutting", Cutting, options)
    return Toy(drafter=drafter, tree=chosen, planner="fixed:nodes=5"), counts


@pytest.mark.parametrize("tree", DRAWN)
def test_a_draft_may_be_cut_by_its_confidence(tree):
    toy, counts = cutting(tree, lambda draft, node: draft.confidence[node], 0.7)
    laws.a_step_is_exact(toy, laws.SAMPLINGS["plain"])
    laws.neighbours_do_not_matter(toy)
    assert min(counts) > 0


def test_a_draft_may_not_be_cut_by_what_was_drawn():
    toy, _ = cutting("chain", lambda draft, node: draft.drawn_from(node).prob(draft.tokens[node]), 0.3)
    with pytest.raises(LawError):
        laws.a_step_is_exact(toy, laws.SAMPLINGS["plain"])
