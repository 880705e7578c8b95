"""A suffix automaton, plain and compiled, against brute force over the sequences themselves."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.automaton import ROOT, SEEN, START, PlainAutomaton, automaton

KINDS = [PlainAutomaton, automaton]
SEQUENCES = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5)


every_kind = pytest.mark.parametrize("kind", KINDS, ids=["plain", "compiled"])


def test_the_compiled_one_is_tested_where_it_is_there():
    assert (type(automaton()) is PlainAutomaton) == (native.load() is None)


def grown(kind, sequences, turns=()):
    """An automaton to which the sequences came token by token, `turns` saying whose turn it is; and their ends."""
    made, lasts, done = kind(), [ROOT] * len(sequences), [0] * len(sequences)
    for turn in (*turns, *range(len(sequences))):
        at = turn % len(sequences)
        rest = sequences[at][done[at] :] if turn == at and len(turns) == 0 else sequences[at][done[at] : done[at] + 1]
        lasts[at] = made.extend(lasts[at], rest)
        done[at] += len(rest)
    for at, sequence in enumerate(sequences):
        lasts[at] = made.extend(lasts[at], sequence[done[at] :])
    return made, lasts


def occurrences(sequences, context):
    """What follows every occurrence; None at a sequence's end."""
    size, found = len(context), []
    for sequence in sequences:
        for end in range(size, len(sequence) + 1):
            found += [(*sequence, None)[end]] if list(sequence[end - size : end]) == list(context) else []
    return found


def followed(sequences, context):
    """How often each token followed the longest part of the context that ever went on."""
    for n in range(len(context), 0, -1):
        counts = Counter(t for t in occurrences(sequences, context[len(context) - n :]) if t is not None)
        if counts:
            return counts
    return Counter()


def longest(sequences, text):
    return next(n for n in range(len(text), -1, -1) if n == 0 or occurrences(sequences, text[len(text) - n :]))


@every_kind
@given(SEQUENCES, st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 50), max_size=40))
def test_a_match_is_the_longest_suffix_that_occurs(kind, sequences, text, turns):
    made, _ = grown(kind, sequences, turns)
    _, length = made.follow(START, text)
    assert length == longest(sequences, text)


@every_kind
@given(SEQUENCES, st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 50), max_size=40))
def test_continuations_have_the_counts_of_the_sequences(kind, sequences, text, turns):
    made, _ = grown(kind, sequences, turns)
    at = made.follow(START, text)
    counts = followed(sequences, text[len(text) - at[1] :])
    tokens, _, chances, _ = made.chain(at, 1, False)
    if not counts:
        assert tokens == ()
        return
    assert counts[tokens[0]] == max(counts.values())
    assert chances[0] == max(counts.values()) / counts.total()


@every_kind
@settings(max_examples=300)
@given(SEQUENCES, st.integers(0, 3), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=3))
@example([[3, 0, 1], [2, 0, 1, 2]], 2, 1, [2])  # the split state is longer than the match
def test_a_match_made_before_others_came_still_stands_for_its_context(kind, sequences, first, size, more):
    """States are split while sequences grow; whoever holds one still finds the context that it matched."""
    made, text = kind(), sequences[0][first : first + size]
    made.extend(ROOT, sequences[0])
    at = made.follow(START, text)
    for sequence in sequences[1:]:
        made.extend(ROOT, sequence)
    counts = followed(sequences, text)
    tokens, *_ = made.chain(at, 1, False)
    assert counts[tokens[0]] == max(counts.values()) if counts else tokens == ()
    assert made.follow(at, more)[1] == longest(sequences, [*text, *more])


@every_kind
@given(st.lists(st.integers(0, 2), min_size=1, max_size=14))
def test_the_earlier_occurrence_is_the_longest_there_is(kind, sequence):
    made = kind()
    _, length = made.earlier(made.extend(ROOT, sequence))
    shorter = [n for n in range(len(sequence)) if len(occurrences([sequence], sequence[len(sequence) - n :])) > 1]
    assert length == max(shorter)


@every_kind
@given(SEQUENCES, st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 8))
def test_a_latest_chain_is_what_followed_the_latest_occurrence(kind, sequences, text, budget):
    made, _ = grown(kind, sequences)
    at = made.follow(START, text)
    context = text[len(text) - at[1] :]
    if at[1] == 0:
        return
    follow = []
    for sequence in sequences:
        for end in range(at[1], len(sequence)):
            if sequence[end - at[1] : end] == context:
                follow = sequence[end:]
    assert list(made.chain(at, budget, True)[0][: len(follow)]) == follow[:budget]


@every_kind
@given(SEQUENCES, st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 8), st.sampled_from([0.0, 0.3]))
def test_a_tree_is_of_the_likeliest_paths(kind, sequences, text, budget, least):
    made, _ = grown(kind, sequences)
    at = made.follow(START, text)
    tokens, parents, chances, score = made.tree(at, budget, 9.0, least)
    reach, paths = [], []
    for node, parent in enumerate(parents):
        assert parent < node
        reach.append(chances[node] * (reach[parent] if parent >= 0 else 1.0))
        paths.append(((paths[parent] if parent >= 0 else ()), tokens[node]))
    assert len(tokens) <= budget
    assert len(set(paths)) == len(paths)
    assert reach == sorted(reach, reverse=True)
    assert sum(reach) == pytest.approx(score)
    assert all(one >= least for one in reach)


@settings(max_examples=300)
@given(st.lists(st.lists(st.integers(0, 5), max_size=30), min_size=1, max_size=5), st.lists(st.integers(0, 50)))
def test_plain_and_compiled_guess_the_same(sequences, turns):
    (plain, ends), (compiled, others) = (grown(kind, sequences, turns) for kind in KINDS)
    assert ends == others
    assert plain.states == compiled.states
    for sequence, end in zip(sequences, ends, strict=True):
        assert plain.earlier(end) == compiled.earlier(end)
        for text in (sequence, sequence[1:], sequence[::-1]):
            at = plain.follow(START, text)
            assert at == compiled.follow(START, text)
            for latest in (True, False):
                assert plain.chain(at, 6, latest) == compiled.chain(at, 6, latest)
            for factor, least in ((1.0, 0.1), (4.0, 0.0)):
                assert plain.tree(at, 8, factor, least) == compiled.tree(at, 8, factor, least)


@every_kind
def test_many_continuations_of_one_context_are_all_found(kind):
    made = kind()
    for token in range(8, 2008):
        made.extend(ROOT, [7, token])
    assert made.states == 2002  # a token and its context end at the same place
    for token in range(8, 2008):
        assert made.follow(START, [7, token])[1] == 2
    assert len(made.tree(made.follow(START, [7]), 999, 999.0, 0.0)[0]) == SEEN


@every_kind
def test_periodic_text_stays_cheap_and_right(kind):
    made = kind()
    end = made.extend(ROOT, [1] * 3000)
    assert made.earlier(end)[1] == 2999
    assert made.chain(made.earlier(end), 5, True)[0] == (1,) * 5


def test_a_state_that_is_none_is_refused():
    if native.load() is not None:
        with pytest.raises(ValueError, match="no such state"):
            automaton().extend(5, [1])
