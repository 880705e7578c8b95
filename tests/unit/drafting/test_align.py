"""Following a source: replaced, inserted and deleted tokens, and repeated lines in their order."""

import pytest

from forerun.drafting.align import Follower, Source

SOURCE = tuple(range(10, 30))


def followed(source, text, match=2):
    follower = Follower(Source(source, match), 0)
    follower.read(text)
    return follower


def test_what_agrees_is_followed():
    follower = followed(SOURCE, SOURCE[:5])
    assert follower.expected(3) == SOURCE[5:8]
    assert follower.expected(100) == SOURCE[5:]
    assert followed(SOURCE, SOURCE).expected(4) == ()


@pytest.mark.parametrize(
    ("text", "place", "wrong"),
    [
        ((10, 11, 99), 3, 1),  # replaced: on behind it
        ((10, 11, 99, 98), 4, 2),
        ((10, 11, 99, 13), 4, 0),
        ((10, 11, 99, 12, 13), 4, 0),  # inserted: found again by the two tokens behind it
        ((10, 11, 15, 16), 7, 0),  # deleted
        ((10, 11, 99, 98, 10, 11), 2, 0),  # back to an earlier place, as there is none ahead
    ],
)
def test_it_is_found_again_after_an_edit(text, place, wrong):
    follower = followed(SOURCE, text)
    assert (follower.at, follower.wrong) == (place, wrong)


def test_repeated_lines_are_found_in_their_order():
    line = (1, 2, 3)
    source = (*line, 50, *line, 60, *line, 70)
    text = (*line, 50, 9, 9, 9, 2, 3)  # the second of the lines begins with other tokens
    assert followed(source, text).expected(1) == (60,)
    assert followed(source, (*text, 60, 9, 9, 9, 2, 3)).expected(1) == (70,)


def test_reading_in_parts_is_reading_at_once():
    text = (10, 11, 99, 13, 14, 98, 97, 20, 21)
    whole, parts = followed(SOURCE, text), Follower(Source(SOURCE, 2), 0)
    for end in range(len(text) + 1):
        parts.read(text[:end])
    assert (parts.at, parts.wrong) == (whole.at, whole.wrong) == (12, 0)


def test_an_empty_source_expects_nothing():
    assert followed((), (1, 2, 3)).expected(8) == ()
