"""Pieces of a round's work: each is taken once, whoever comes when; nobody waits while there is something to take."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.kernels import native

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")


def opened(size):
    return native.load().Deal(size)


def taken(deal, order, total, least=1, unit=1):
    """Who came took what: those of the order, then the first until nothing is left."""
    pieces = [(who, deal.take(who, total, least, unit)) for who in order]
    while pieces == [] or pieces[-1][1][0] < pieces[-1][1][1]:
        pieces.append((0, deal.take(0, total, least, unit)))
    return [(who, *piece) for who, piece in pieces if piece[0] < piece[1]]


def covered(pieces):
    return sorted(at for _, begin, end in pieces for at in range(begin, end))


@given(st.data(), st.integers(1, 5), st.integers(0, 90), st.integers(0, 9), st.integers(1, 3))
def test_everything_is_taken_once_in_any_order(data, size, total, least, unit):
    deal = opened(size)
    for _ in range(3):
        for who in range(size):
            deal.begin(who)
        order = data.draw(st.lists(st.integers(0, size - 1), max_size=30))
        pieces = taken(deal, order, total, least, unit)
        assert covered(pieces) == list(range(total))
        wholes = [end - begin for _, begin, end in pieces if (end - begin) % unit or end - begin < least]
        assert len(wholes) <= size  # the last of a share may be less


def test_each_begins_with_its_own_and_helps_who_is_late():
    deal = opened(2)
    for who in range(2):
        deal.begin(who)
    assert deal.take(0, 16, 2, 1) == (0, 4)
    assert deal.take(0, 16, 2, 1) == (4, 6)
    assert deal.take(0, 16, 2, 1) == (6, 8)
    assert deal.take(0, 16, 2, 1) == (12, 16)  # the other has not come at all
    assert deal.take(1, 16, 2, 1) == (8, 10)
    assert deal.take(1, 16, 2, 1) == (10, 12)
    assert deal.take(1, 16, 2, 1) == (0, 0)


def test_a_round_that_another_began_is_not_an_old_one():
    deal = opened(2)
    for _ in range(1 << 16 | 3):  # more rounds than have numbers
        deal.begin(0)
        assert covered(taken(deal, [], 2)) == [0, 1]
        deal.begin(1)
        assert deal.take(1, 2, 1, 1) == (0, 0)


def test_who_does_not_take_part_for_some_rounds_has_a_share_again_later():
    deal = opened(3)
    for size in (1, 3, 2, 3):
        deal.among(size)
        for _ in range(3):
            for who in range(size):
                deal.begin(who)
            pieces = taken(deal, [size - 1], 30)
            assert covered(pieces) == list(range(30))
            assert pieces[0][1] == 30 * (size - 1) // size  # where the last one's share begins


def test_who_was_away_for_as_many_rounds_as_have_numbers_has_a_share_again():
    deal = opened(2)
    for who in range(2):
        deal.begin(who)
    assert covered(taken(deal, [1], 4)) == [0, 1, 2, 3]
    deal.among(1)
    for _ in range((1 << 16) - 1):
        deal.begin(0)
        assert deal.take(0, 4, 4, 1) == (0, 4)
    deal.among(2)
    for who in range(2):
        deal.begin(who)
    assert covered(taken(deal, [1], 4)) == [0, 1, 2, 3]


def test_threads_at_once_take_everything_once():
    size, total, rounds = 4, 5000, 20
    deal, gate, pieces = opened(size), threading.Barrier(size), [[[] for _ in range(size)] for _ in range(rounds)]

    def work(who):
        for number in range(rounds):
            gate.wait()
            deal.begin(who)
            while (piece := deal.take(who, total, 1, 1))[0] < piece[1]:
                pieces[number][who].append((who, *piece))

    threads = [threading.Thread(target=work, args=(who,)) for who in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in pieces:
        assert covered([piece for own in each for piece in own]) == list(range(total))
