"""Nodes are counted from the likeliest, whatever order the tree has them in."""

import pytest

from forerun.drafting.worth import ranked
from forerun.types import Draft

TREE = Draft((1, 2, 3, 4), (-1, -1, 0, 2), confidence=(0.6, 0.2, 0.5, 0.9))  # reached by 0.6, 0.2, 0.3 and 0.27


@pytest.mark.parametrize(
    ("path", "numbers"), [((), set()), ((1,), {3}), ((0,), {0}), ((0, 2), {0, 1}), ((0, 2, 3), {0, 1, 2})]
)
def test_a_smaller_draft_would_have_had_the_likeliest_nodes(path, numbers):
    assert set(ranked(TREE, path)) == numbers


def test_equally_likely_nodes_stay_in_their_order():
    draft = Draft((1, 2, 3), (-1, -1, -1), confidence=(0.3, 0.3, 0.3))
    assert [set(ranked(draft, (node,))) for node in range(3)] == [{0}, {1}, {2}]


def test_of_a_chain_and_of_what_nobody_said_how_likely_it_is_nothing_changes():
    assert ranked(Draft((1, 2), (-1, -1)), (1,)) == (1,)
    assert set(ranked(Draft((1, 2, 3), (-1, 0, 1), confidence=(0.9, 0.5, 0.9)), (0, 1))) == {0, 1}
