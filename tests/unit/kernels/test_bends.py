"""What is compiled bends rows as the plain reference does, to the bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.bends import bend, plain
from forerun.types import Sampling

needs_compiler = pytest.mark.skipif(native.load() is None, reason="nothing was compiled")
VOCAB = 37
TOKEN = st.integers(0, VOCAB - 1)
TOKENS = st.lists(TOKEN, max_size=9)
OPTIONS = {
    "repetition_penalty": st.sampled_from([0.7, 1.3]),
    "presence_penalty": st.sampled_from([-0.4, 0.3]),
    "frequency_penalty": st.sampled_from([-0.1, 0.7]),
    "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-100.0, 0.3, 2.0]), max_size=5),
    "allowed_tokens": st.lists(TOKEN, min_size=1, max_size=VOCAB).map(tuple),
}


@needs_compiler
@given(
    st.integers(0, 2**31),
    st.tuples(st.lists(TOKEN, min_size=1, max_size=60), st.integers(1, 60)),
    st.lists(st.tuples(TOKENS.map(tuple), TOKENS), min_size=1, max_size=4),
    st.booleans(),
    st.fixed_dictionaries({}, optional=OPTIONS),
)
def test_any_text(seed, text, rows, banned, options):
    tokens, prompt_length = text
    sampling, paths = Sampling(**options), [path for path, _ in rows]
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)).mul(3)
    logits[:, 3] = -torch.inf
    asked = logits.clone(), sampling, tokens, prompt_length, paths, [ban for _, ban in rows] if banned else ()
    assert torch.equal(bend(*asked), plain(*asked))
    assert torch.equal(asked[0], logits)


@needs_compiler
@pytest.mark.parametrize(
    ("options", "text", "paths", "bans"),
    [
        ({"repetition_penalty": 2.0}, [0, VOCAB], [()], ()),
        ({"repetition_penalty": 2.0}, [0], [(-1,)], ()),
        ({"logit_bias": {VOCAB: 1.0}}, [0], [()], ()),
        ({"allowed_tokens": (VOCAB,)}, [0], [()], ()),
        ({}, [0], [()], [[VOCAB]]),
    ],
)
def test_a_token_outside_the_vocabulary_is_refused(options, text, paths, bans):
    with pytest.raises(ValueError, match="no such token"):
        bend(torch.zeros(1, VOCAB), Sampling(**options), text, 1, paths, bans)


def test_biases_are_as_exact_as_the_logits():
    logits = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    assert bend(logits, Sampling(logit_bias={1: 0.3}), [0], 1, [()], ()).tolist() == [[0.1, 0.2 + 0.3]]
