"""The compiled penalties are those of the plain reference, to the bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.kernels import native
from forerun.kernels.penalties import penalize, plain
from forerun.types import Sampling

needs_compiler = pytest.mark.skipif(native.load() is None, reason="nothing was compiled")
VOCAB = 37
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=9)


@needs_compiler
@given(
    st.integers(0, 2**31),
    st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60), st.integers(1, 60)),
    st.lists(TOKENS.map(tuple), min_size=1, max_size=4),
    st.tuples(st.sampled_from([0.7, 1.0, 1.3]), st.sampled_from([-0.4, 0.0, 0.3]), st.sampled_from([-0.1, 0.0, 0.7])),
)
def test_any_text(seed, text, paths, penalties):
    tokens, prompt_length = text
    names = "repetition_penalty", "presence_penalty", "frequency_penalty"
    sampling = Sampling(**dict(zip(names, penalties, strict=True)))
    logits = torch.randn(len(paths), VOCAB, generator=torch.Generator().manual_seed(seed)).mul(3)
    logits[:, 3] = -torch.inf
    before = logits.clone()
    found = penalize(logits, sampling, tokens, prompt_length, paths)
    assert torch.equal(found, plain(logits, sampling, tokens, prompt_length, paths))
    assert torch.equal(logits, before)


@needs_compiler
@pytest.mark.parametrize(("text", "paths"), [([0, VOCAB], [()]), ([0], [(-1,)])])
def test_a_token_outside_the_vocabulary_is_refused(text, paths):
    with pytest.raises(ValueError, match="no such token"):
        penalize(torch.zeros(1, VOCAB), Sampling(repetition_penalty=2.0), text, 1, paths)
