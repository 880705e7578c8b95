"""A suffix array and its search, plain and compiled, against sorting and looking through the text."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.suffixes import END, Plain, build, search

DOCUMENTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=15), min_size=1, max_size=4)
SEARCHES = [Plain, search]
every_search = pytest.mark.parametrize("kind", SEARCHES, ids=["plain", "compiled"])


def text_of(documents):
    return np.array([token for document in documents for token in (*document, END)], np.int32)


def opened(kind, documents):
    tokens = text_of(documents)
    return kind(tokens, build(tokens))


def test_the_compiled_one_is_tested_where_it_is_there():
    assert (type(search(*[np.zeros(1, np.int32)] * 2)) is Plain) == (native.load() is None)


@given(st.lists(st.integers(-1, 2), max_size=60))
def test_suffixes_stand_in_order(tokens):
    order = build(np.array(tokens, np.int32)).tolist()
    assert sorted(order, key=lambda begin: tokens[begin:]) == order
    assert sorted(order) == list(range(len(tokens)))


def test_a_long_repetition_is_ordered_as_far_as_patterns_reach():
    found = search(tokens := np.array([3] * 5000 + [4, END], np.int32), build(tokens))
    low, high, length = found.longest([4, *[3] * 15], 2)
    assert (high - low, length) == (5000 - 14, 15)


@every_search
@given(DOCUMENTS, st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 3))
def test_the_longest_suffix_that_occurs_is_found(kind, documents, pattern, least):
    found = opened(kind, documents)
    low, high, length = found.longest(pattern, least)
    places = {n: occurrences(documents, pattern[len(pattern) - n :]) for n in range(least, len(pattern) + 1)}
    longest = max((n for n, at in places.items() if at), default=0)
    assert length == longest
    assert high - low == len(places.get(longest, ()))


def occurrences(documents, pattern):
    """What follows every occurrence, to the document's end."""
    size = len(pattern)
    return [d[i + size :] for d in documents for i in range(len(d) - size + 1) if d[i : i + size] == pattern]


@every_search
@given(DOCUMENTS, st.lists(st.integers(0, 2), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 9))
def test_the_tree_is_of_the_most_frequent_continuations(kind, documents, pattern, depth, budget):
    found = opened(kind, documents)
    place = found.longest(pattern, 1)
    rest = occurrences(documents, pattern[len(pattern) - place[2] :]) if place[2] else []
    wanted = Counter(tuple(one[:n]) for one in rest for n in range(1, min(depth, len(one)) + 1))
    tokens, parents, chances, score = found.prefixes(place, depth, 999, budget, 0.0)
    paths = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert len(set(paths)) == len(paths) == min(budget, len(wanted))
    assert sorted((wanted[p] for p in paths), reverse=True) == sorted(wanted.values(), reverse=True)[: len(paths)]
    above = [wanted[p[:-1]] if len(p) > 1 else len(rest) for p in paths]
    assert list(chances) == [wanted[p] / n for p, n in zip(paths, above, strict=True)]
    assert score == pytest.approx(sum(wanted[p] for p in paths) / max(len(rest), 1))


@settings(max_examples=200)
@given(DOCUMENTS, st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(1, 5), st.sampled_from([0.0, 0.4]))
def test_plain_and_compiled_find_the_same(documents, pattern, most, least):
    plain, compiled = (opened(kind, documents) for kind in SEARCHES)
    place = plain.longest(pattern, 1)
    assert place == compiled.longest(pattern, 1)
    assert plain.prefixes(place, 3, most, 6, least) == compiled.prefixes(place, 3, most, 6, least)
