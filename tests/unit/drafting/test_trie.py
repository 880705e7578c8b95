"""Chains that begin alike share nodes, and the budget holds."""

from forerun.drafting.trie import Trie


def test_what_begins_alike_is_one_node():
    trie = Trie(9)
    assert trie.add((1, 2, 3)) == [0, 1, 2]
    assert trie.add((1, 2, 4)) == [0, 1, 3]
    assert trie.add((2, 3)) == [4, 5]
    assert trie.add((3,), 1) == [2]
    draft = trie.draft("me")
    assert (draft.tokens, draft.parents) == ((1, 2, 3, 4, 2, 3), (-1, 0, 1, 1, -1, 4))
    draft.check(5, 6)


def test_the_budget_ends_a_chain_and_not_what_is_there_already():
    trie = Trie(2)
    assert trie.add((1, 2, 3)) == [0, 1]
    assert trie.add((1, 3)) == [0]
    assert trie.add((2,)) == []
    assert trie.add((1, 2)) == [0, 1]
    assert len(trie) == 2
