"""RASD: what is retrieved is pruned by the drafter's distribution, and joins its tree where both say the same."""

import numpy as np
import pytest

from forerun.drafters.rasd import fused, pruned
from forerun.types import Dist, Draft

TREE = ((5, 7, 8, 9), (-1, 0, -1, 2), (0.6, 0.5, 0.4, 1.0), 1.9)  # 5 7 and 8 9


def drawn(*tokens, **chances):
    """A chain whose first token was drawn from a distribution over ten."""
    p = np.full(10, 0.01)
    for name, chance in chances.items():
        p[int(name.removeprefix("t"))] = chance
    return Draft.chain(tokens, "of", (Dist(p / p.sum()),) * len(tokens))


def test_a_branch_stays_where_its_first_token_is_likely():
    assert pruned(TREE, drawn(3, t5=0.3, t3=0.6), 0.1)[:2] == ((5, 7), (-1, 0))
    assert pruned(TREE, drawn(3, t8=0.3, t3=0.6), 0.1)[:3] == ((8, 9), (-1, 0), (0.4, 1.0))
    assert pruned(TREE, drawn(3, t3=0.9), 0.1)[0] == ()
    assert pruned(TREE, drawn(3, t3=0.9), 0.0)[0] == TREE[0]


def test_a_branch_stays_that_the_drafter_chose_too():
    assert pruned(TREE, Draft.chain((8, 1)), 0.1)[0] == (8, 9)


def test_nothing_is_pruned_where_the_drafter_says_nothing():
    assert pruned(TREE, Draft(), 0.1)[0] == TREE[0]


def test_nodes_that_say_the_same_are_one():
    own = drawn(5, 1, t5=0.5)
    tree = fused(own, TREE, 9)
    assert tree.tokens == (5, 1, 7, 8, 9)
    assert tree.parents == (-1, 0, 0, -1, 3)
    assert [q is None for q in tree.q] == [False, False, True, True, True]
    assert tree.q[:2] == own.q
    assert tree.confidence == (1.0, 1.0, 0.5, 0.4, 1.0)
    assert tree.source == ("of", "of", "rasd", "rasd", "rasd")


def test_the_eldest_of_equal_siblings_is_joined():
    q = Dist(np.full(10, 0.1))
    tree = fused(Draft((5, 5), (-1, -1), (q, q), source="of"), TREE, 3)
    assert (tree.tokens, tree.parents) == ((5, 5, 7), (-1, -1, 0))


@pytest.mark.parametrize("budget", range(2, 8))
def test_the_budget_holds_and_parents_come_first(budget):
    tree = fused(Draft.chain((1, 2)), TREE, budget)
    tree.check(10, budget)
    assert len(tree) == min(budget, 6)
    assert tree.q is None
