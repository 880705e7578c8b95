"""What compiled code says of drafts where the target says every token itself is what Python says."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.decoders.autoregressive import plain
from forerun.decoders.contract import Plan, Seat
from forerun.decoders.draft_verify import DraftVerifyDecoder, _turn
from forerun.kernels import native
from forerun.kernels.turns import RECORDS, said
from forerun.rng import CounterRng
from forerun.types import Context, Draft, Output, Sampling, Work

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native kernels")
TOKENS = st.integers(0, 3)  # few, so that the target often says what was drafted; and large, which Python does not keep


@st.composite
def judged(draw):
    """A draft, and the target's likeliest tokens after the root and every node."""
    size = draw(st.integers(0, 8))
    tokens = tuple(draw(st.lists(TOKENS.map(lambda token: 70_000 + token), min_size=size, max_size=size)))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    best = tuple(draw(st.lists(TOKENS.map(lambda token: 70_000 + token), min_size=size + 1, max_size=size + 1)))
    return Draft(tokens, parents, source="a drafter"), best, tuple(range(draw(st.integers(1, 3))))


def of(draft, best, pending=(1,), last=True, **sampling):
    """A seat, its plan and its output."""
    context = Context(0, [1, 2], 1, Sampling(temperature=0, **sampling), CounterRng(0))
    work = Work(0, pending + draft.tokens, None, 0, tuple(range(len(pending) - 1, len(pending) + len(draft))))
    return Seat(context, 0, pending, last, len(draft)), Plan(work, draft), Output(None, best, (0.0,) * len(best))


def decoder():
    facts = SimpleNamespace(coupled=True)
    drafter = SimpleNamespace(listens=False, watches=False, hidden=())
    setup = SimpleNamespace(eos=())
    verifier = SimpleNamespace(facts=facts, hidden=())
    parts = SimpleNamespace(drafter=drafter, verifier=verifier, setup=setup, eos=())
    return DraftVerifyDecoder(DraftVerifyDecoder.Options(), parts)


@given(st.lists(judged(), min_size=1, max_size=4))
def test_it_is_what_python_says(several):
    seats, plans, outputs = map(list, zip(*[of(*one) for one in several], strict=True))
    told, alone = said(seats, plans, outputs), decoder()._judged(seats, plans, outputs)
    assert told == [(outcome, _turn(seat, outcome)) for seat, (outcome, _) in zip(seats, alone, strict=True)]
    types = [(type(outcome), type(outcome.verdict), type(turn), type(turn.emissions[0])) for outcome, turn in told]
    verdict, outcome, emission, turn = RECORDS
    assert set(types) == {(outcome, verdict, turn, emission)}


@pytest.mark.parametrize(
    ("more", "source"),
    [({"last": False}, ""), ({"logprobs": 1}, ""), ({"repetition_penalty": 1.5}, ""), ({}, ("a", "b"))],
)
def test_who_asks_for_more_is_left_to_python(more, source):
    asked, plain = Draft((5, 6), (-1, 0), source=source), Draft((5, 6), (-1, 0))
    seats, plans, outputs = map(list, zip(of(asked, (5, 7, 8), **more), of(plain, (5, 7, 8)), strict=True))
    left, told = said(seats, plans, outputs)
    assert left is None
    assert told[0].verdict == ((0,), 7)


@pytest.mark.parametrize(
    ("parents", "best"), [((1, -1), (5, 6, 7)), ((-1, 5), (5, 6, 7)), ((-1, 0), (5, 6)), ((-1,), (5,))]
)
def test_what_is_no_tree_with_its_rows_is_refused(parents, best):
    seats, plans, outputs = ([one] for one in of(Draft((5, 6), parents), best))
    with pytest.raises((ValueError, TypeError)):
        said(seats, plans, outputs)


def test_everybody_has_a_plan_and_an_output():
    seats, plans, outputs = ([one] for one in of(Draft(), (5,)))
    with pytest.raises(ValueError, match="for every seat"):
        native.load().said(seats, plans, [*outputs, *outputs], RECORDS)


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=4), st.integers(1, 3))
def test_without_drafts_it_is_plain_decoding(best, read):
    seats, plans, outputs = map(list, zip(*[of(Draft(), (token,), tuple(range(read))) for token in best], strict=True))
    turns = [plain(*one, ()) for one in zip(seats, plans, outputs, strict=True)]
    assert [turn for _, turn in said(seats, plans, outputs)] == turns


def test_nobody_is_told_where_nothing_was_compiled(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: None)
    seats, plans, outputs = ([one] for one in of(Draft(), (5,)))
    assert said(seats, plans, outputs) == [None]
    assert decoder().commit(seats, plans, outputs) == [plain(seats[0], plans[0], outputs[0], ())]


@pytest.mark.parametrize("types", [RECORDS[:3], (*RECORDS[:3], dict), (*RECORDS[:3], 5)])
def test_only_records_are_made(types):
    seats, plans, outputs = ([one] for one in of(Draft(), (5,)))
    with pytest.raises(TypeError):
        native.load().said(seats, plans, outputs, types)


def test_who_has_read_nothing_is_refused():
    seats, plans, outputs = ([one] for one in of(Draft(), (5,), pending=()))
    with pytest.raises(TypeError):
        said(seats, plans, outputs)
