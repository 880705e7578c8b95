"""Values: distributions with and without a list of ids, and trees in the two ways that others read them."""

import numpy as np
import pytest

from forerun.errors import DraftError
from forerun.types import Dist, Draft, Sampling

V = 6
DENSE = {
    "p": np.array([0.1, 0.3, 0.0, 0.2, 0.4, 0.0]),
    "q": np.array([0.5, 0.0, 0.1, 0.2, 0.2, 0.0]),
    "far": np.array([0.0, 0.0, 0.6, 0.0, 0.0, 0.4]),
}


def sparse(dense):
    ids = np.flatnonzero(dense)[::-1].copy()  # in no order that a search could rely on
    return Dist(dense[ids], ids)


def spread(dist):
    """The probabilities [V] of a distribution of either kind."""
    return dist.at(np.arange(V))


FORMS = {"dense": Dist, "sparse": sparse}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", DENSE)
def test_both_forms_say_the_same(name, form):
    dist = FORMS[form](DENSE[name])
    assert spread(dist) == pytest.approx(DENSE[name])
    assert [dist.prob(token) for token in range(V)] == pytest.approx(DENSE[name].tolist())


@pytest.mark.parametrize("p", FORMS)
@pytest.mark.parametrize("q", FORMS)
@pytest.mark.parametrize("name", ["q", "far"])
def test_what_is_left_of_p_is_the_same_in_every_form(name, q, p):
    rest = np.maximum(DENSE["p"] - DENSE[name], 0)
    found = FORMS[p](DENSE["p"]).minus(FORMS[q](DENSE[name]))
    assert spread(found) == pytest.approx(rest / rest.sum())


@pytest.mark.parametrize("form", FORMS)
def test_a_point_takes_its_token_away(form):
    """A refused token that was chosen, not drawn, has no mass afterwards."""
    rest = np.where(np.arange(V) == 4, 0, DENSE["p"])
    found = FORMS[form](DENSE["p"]).minus(Dist.point(4))
    assert spread(found) == pytest.approx(rest / rest.sum())


@pytest.mark.parametrize("form", FORMS)
def test_where_nothing_is_left_it_is_p(form):
    p = FORMS[form](DENSE["p"])
    assert p.minus(p) is p
    assert Dist.point(3).minus(Dist.point(4)) == Dist.point(3)


def test_a_point_is_certain_of_its_token():
    assert [Dist.point(3).prob(token) for token in range(5)] == [0, 0, 0, 1, 0]
    assert spread(Dist.point(3)).tolist() == [0, 0, 0, 1, 0, 0]


TREE = Draft((5, 4, 3, 2, 1, 0), (-1, -1, 0, 1, 1, 3))


def test_a_tree_as_first_children_and_next_siblings():
    """Walking the two arrays meets every node's children in order."""
    first, sibling = TREE.first_child_next_sibling
    for node in range(len(TREE)):
        walk, child = [], first[node]
        while child >= 0:
            walk.append(child)
            child = sibling[child]
        assert tuple(walk) == TREE.children(node)
    assert TREE.children(-1) == (0, 1)
    assert sibling[0] == 1
    assert Draft().first_child_next_sibling == ((), ())


def test_a_tree_knows_depths_and_sources():
    assert TREE.depths == (1, 1, 2, 2, 2, 3)
    assert (TREE.depth, Draft().depth) == (3, 0)
    assert Draft((1, 2), (-1, 0), source=("ngram", "suffix")).source_of(1) == "suffix"
    assert Draft((1, 2), (-1, 0), source="ngram").source_of(1) == "ngram"


def test_a_tree_loses_nodes_with_their_descendants_and_younger_siblings():
    q = Dist(np.array([0.5, 0.5]))
    whole = Draft((1, 0, 1, 1), (-1, -1, 0, 1), (q, None, q, None), (0.9, 0.8, 0.7, 0.6), ("a", "b", "c", "d"))
    part = whole.only([0, 2])
    assert part == Draft((1, 1), (-1, 0), (q, q), (0.9, 0.7), ("a", "c"))
    assert whole.places_of(part) == [0, 2]
    assert whole.places_of(whole.only([0, 1, 3])) == [0, 1, 3]
    assert whole.only(range(4)) is whole
    with pytest.raises(DraftError, match="without an elder sibling"):
        whole.only([1, 3])
    with pytest.raises(DraftError, match="without all their parents"):
        whole.only([0, 3])


def test_greedy_is_temperature_zero():
    assert Sampling(temperature=0).greedy
    assert not Sampling(temperature=0.01).greedy
