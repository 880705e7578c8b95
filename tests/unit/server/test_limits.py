"""Admission: nobody comes in where there is no room, and everybody's place comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server.limits import Admission
from forerun.server.refusal import Refusal


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.booleans())))
def test_the_books_balance(moves):
    """Whoever comes and goes: at most so many inside, in all and per key; nobody inside at the end."""
    admission, inside = Admission(6, 3), []
    for key, count, leaves in moves:
        seats = admission.seats(key, count)
        if leaves and inside:
            inside.pop(0).__exit__(None, None, None)
        if admission.inside.total() + count > 6 or admission.inside[key] + count > 3:
            with pytest.raises(Refusal) as problem:
                seats.__enter__()
            assert problem.value.status == (400 if count > 3 else 429)
        else:
            seats.__enter__()
            inside.append(seats)
        assert admission.inside.total() <= 6
        assert max(admission.inside.values(), default=0) <= 3
    for seats in inside:
        seats.__exit__(None, None, None)
    assert not admission.inside


def test_nobody_comes_in_at_the_end():
    admission = Admission(2)
    with admission.seats("a", 1):
        admission.close(7)
        with pytest.raises(Refusal) as problem, admission.seats("b", 1):
            pass
        assert (problem.value.status, problem.value.retry_after) == (503, 7)
        assert not admission.empty.is_set()
    assert admission.empty.is_set()
