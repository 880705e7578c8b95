"""Earlier outputs: what is learned, and where a text stands in them."""

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.rng import CounterRng
from forerun.stores.archive import LEAD, PARTS, Archive, Place, check_room
from forerun.types import Context, Sampling


def context(prompt, output, scope=""):
    return Context(0, [*prompt, *output], len(prompt), Sampling(), CounterRng(0), scope=scope)


def test_an_output_is_kept_with_the_end_of_its_prompt():
    archive = Archive(1000)
    archive.learn(context(range(100), [7, 8]))
    archive.learn(context(range(9), []))
    assert [text.tolist() for text in archive.texts()[""]] == [[*range(100 - LEAD, 100), 7, 8]]


def test_a_volume_that_comes_later_is_read_from_the_texts_end():
    archive, place = Archive(1000), Place()
    place.read([1, 2, 3], archive.of(""))
    assert place.matches == {}
    archive.add("", np.array([2, 3, 4], np.int32))
    place.read([1, 2, 3], archive.of(""))
    assert [length for _, length in place.matches.values()] == [2]
    place.read([1, 2, 3, 4], archive.of(""))
    assert [length for _, length in place.matches.values()] == [3]


def test_too_little_room_is_refused():
    check_room(PARTS, "drafter 'x'")
    with pytest.raises(ConfigError, match=f"drafter 'x' has room={PARTS - 1}; give at least {PARTS}"):
        check_room(PARTS - 1, "drafter 'x'")
