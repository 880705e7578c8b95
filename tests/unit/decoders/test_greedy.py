"""A greedy draft is judged without p, and as the verifier would judge it by p."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.decoders.draft_verify import _said
from forerun.rng import CounterRng
from forerun.sampling import Rows
from forerun.types import Context, Draft, Output, Sampling
from forerun.verifiers.match import MatchVerifier


@st.composite
def judged(draw):
    """A tree of up to eight nodes over three tokens, and what the target says behind each."""
    size = draw(st.integers(0, 8))
    tokens = draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    best = draw(st.lists(st.integers(0, 2), min_size=size + 1, max_size=size + 1))
    return Draft(tuple(tokens), tuple(parents)), tuple(best)


@given(judged())
def test_the_verdict_by_best_tokens_is_that_of_the_verifier(case):
    draft, best = case
    output = Output(torch.zeros(len(best), 3), best, (0.0,) * len(best))
    context = Context(0, [0], 1, Sampling(temperature=0), CounterRng(0))
    rule = MatchVerifier(MatchVerifier.Options())
    assert _said(draft, best) == rule.verify_one(draft, Rows(output, context, draft), context.rng)
