"""p against transformers' own processors, and the law that a node's p is that of its own prefix."""

import math

import numpy as np
import pytest
import torch
import transformers as tf
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.rng import CounterRng
from forerun.sampling import Rows, Shaper, logprob
from forerun.types import Context, Draft, Output, Sampling

VOCAB, EOS = 40, 5
TOKENS = [7, 3, 9, 3, 9, 3, 12, 7, 3]
PROMPT = 4


def shaped(sampling, logits, tokens=TOKENS):
    return Shaper(sampling, tokens, PROMPT, (EOS,)).probabilities(logits, lambda _: ())


def peer(processors, logits, temperature=1.0):
    ids = torch.tensor([TOKENS] * len(logits))
    scores = logits.clone()
    for processor in processors:
        scores = processor(ids, scores)
    return torch.softmax(scores / temperature, -1)


@pytest.fixture
def logits():
    return torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(3)) * 3


CUTS = [
    ({"top_k": 5}, tf.TopKLogitsWarper(5)),
    ({"top_p": 0.7}, tf.TopPLogitsWarper(0.7)),
    ({"min_p": 0.2}, tf.MinPLogitsWarper(0.2)),
    ({"typical_p": 0.6}, tf.TypicalLogitsWarper(0.6)),
    ({"epsilon_cutoff": 0.03}, tf.EpsilonLogitsWarper(0.03)),
    ({"eta_cutoff": 0.05}, tf.EtaLogitsWarper(0.05)),
    ({"temperature": 0.7}, tf.TemperatureLogitsWarper(0.7)),
    ({"repetition_penalty": 1.7}, tf.RepetitionPenaltyLogitsProcessor(1.7)),
    ({"no_repeat_ngram": 1}, tf.NoRepeatNGramLogitsProcessor(1)),
    ({"no_repeat_ngram": 2}, tf.NoRepeatNGramLogitsProcessor(2)),
    *(({"no_repeat_ngram": n}, tf.NoRepeatNGramLogitsProcessor(n)) for n in (1, 2, 3)),
    ({"bad_words": ((4,), (3, 11))}, tf.NoBadWordsLogitsProcessor([[4], [3, 11]], eos_token_id=[EOS])),
    ({"min_tokens": 9}, tf.MinNewTokensLengthLogitsProcessor(PROMPT, 9, [EOS])),
    ({"logit_bias": {2: 3.5, 8: -4.0}}, tf.SequenceBiasLogitsProcessor([[[2], 3.5], [[8], -4.0]])),
]


@pytest.mark.parametrize(("options", "processor"), CUTS, ids=[next(iter(c[0])) + str(i) for i, c in enumerate(CUTS)])
def test_every_option_agrees_with_transformers(options, processor, logits):
    ours, theirs = shaped(Sampling(**options), logits), peer([processor], logits)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(ours, torch.softmax(logits, -1), atol=1e-4), "the option has no effect here"


def test_all_cuts_together_agree_with_transformers(logits):
    options = {
        "temperature": 0.8,
        "top_k": 12,
        "top_p": 0.9,
        "min_p": 0.02,
        "typical_p": 0.95,
        "repetition_penalty": 1.2,
    }
    chain = [
        tf.RepetitionPenaltyLogitsProcessor(1.2),
        tf.TemperatureLogitsWarper(0.8),
        tf.TopKLogitsWarper(12),
        tf.TopPLogitsWarper(0.9),
        tf.MinPLogitsWarper(0.02),
        tf.TypicalLogitsWarper(0.95),
    ]
    assert torch.allclose(shaped(Sampling(**options), logits), peer(chain, logits), atol=1e-6)


def test_presence_and_frequency_count_the_output_only(logits):
    got = shaped(Sampling(presence_penalty=0.5, frequency_penalty=0.25), logits)
    wanted = logits.clone()
    for token in set(TOKENS[PROMPT:]):
        wanted[:, token] -= 0.5 + 0.25 * TOKENS[PROMPT:].count(token)
    assert torch.allclose(got, torch.softmax(wanted, -1), atol=1e-6)


def test_ties_go_to_the_lowest_id():
    level = torch.zeros(1, VOCAB)
    assert shaped(Sampling(top_k=3), level).nonzero()[:, 1].tolist() == [0, 1, 2]
    assert shaped(Sampling(top_p=0.1), level).nonzero()[:, 1].tolist() == [0, 1, 2, 3]
    assert shaped(Sampling(temperature=0), level).nonzero()[:, 1].tolist() == [0]
    assert shaped(Sampling(epsilon_cutoff=0.9), level).nonzero()[:, 1].tolist() == [0]


def test_a_ban_of_everything_is_refused(logits):
    with pytest.raises(RequestError, match="leave no token"):
        shaped(Sampling(allowed_tokens=(EOS,), min_tokens=99), logits)


SHAPES = [
    Sampling(temperature=0.9, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
    Sampling(no_repeat_ngram=2, bad_words=((3, 9), (1,)), min_tokens=7, top_p=0.9),
    Sampling(temperature=0, repetition_penalty=2.0, logit_bias={3: 5.0}),
]


@given(st.integers(0, 10**6), st.sampled_from(SHAPES))
def test_a_node_has_the_distribution_of_its_own_prefix(seed, sampling):
    g = torch.Generator().manual_seed(seed)
    size = 6
    parents = tuple(int(torch.randint(-1, max(i, 1), (1,), generator=g)) if i else -1 for i in range(size))
    draft = Draft(tuple(torch.randint(0, VOCAB, (size,), generator=g).tolist()), parents)
    logits = torch.randn(size + 1, VOCAB, generator=g) * 2
    best = logits.max(-1)
    output = Output(logits, tuple(best.indices.tolist()), tuple(best.values.tolist()))
    rows = Rows(output, Context(0, TOKENS, PROMPT, sampling, CounterRng(0)), draft, (EOS,))
    for node in range(-1, size):
        path, at = [], node
        while at >= 0:
            path.insert(0, draft.tokens[at])
            at = parents[at]
        alone = shaped(sampling, logits[node + 1 : node + 2], TOKENS + path)[0]
        got = [rows[node].prob(token) for token in range(VOCAB)]
        assert torch.allclose(torch.tensor(got), alone, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}])
def test_large_rows_wait_until_they_are_asked_for(options):
    logits, sampling = torch.randn(3, 30_000, generator=torch.Generator().manual_seed(3)), Sampling(**options)
    best = logits.max(-1)
    output = Output(logits, tuple(best.indices.tolist()), tuple(best.values.tolist()))
    rows = Rows(output, Context(0, TOKENS, PROMPT, sampling, CounterRng(0)), Draft((5, 6), (-1, 0)))
    at_once = shaped(sampling, logits)
    assert all(torch.equal(torch.from_numpy(rows[node].probs), at_once[node + 1]) for node in (1, -1, 0, 1))


def test_logprobs_are_raw_and_ranked():
    row = torch.tensor([1.0, 3.0, 3.0, -2.0])
    total = math.log(sum(math.exp(x) for x in row.tolist()))
    found = logprob(row, 0, 3)
    assert found.rank == 3
    assert found.value == pytest.approx(1.0 - total, abs=1e-6)
    assert [token for token, _ in found.top] == [1, 2, 0]


@given(st.integers(0, 10**6), st.integers(1, 700), st.integers(0, 20))
def test_logprobs_are_those_of_softmax(seed, vocab, count):
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)).mul(3).round(decimals=1)
    wanted = torch.log_softmax(row.double(), -1)
    order = sorted(range(vocab), key=lambda token: (-row[token].item(), token))[:count]
    for logits in (row, row.double()):  # compiled where it can be, and plain
        found = logprob(logits, seed % vocab, count)
        assert found.value == pytest.approx(wanted[seed % vocab].item(), abs=1e-5)
        assert found.rank == 1 + int((row > row[seed % vocab]).sum())
        assert [token for token, _ in found.top] == order
        assert [value for _, value in found.top] == pytest.approx(wanted[order].tolist(), abs=1e-5)


def test_what_is_bent_is_a_copy():
    """Log-probabilities are told of the logits that the model returned."""
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    sampling = Sampling(logit_bias={1: 2.0}, bad_words=((2,),), allowed_tokens=(1, 3))
    Shaper(sampling, [0, 1], 1).probabilities(logits, lambda _: ())
    assert torch.equal(logits, before)


RANGES = [
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -1),
    ("top_k", 2.5),
]
RANGES += [("min_p", True), ("max_tokens", 0), ("logprobs", 21), ("seed", 2**64), ("repetition_penalty", 0.0)]
RANGES += [("stop", ("",)), ("bad_words", ((),)), ("logit_bias", {1: float("nan")}), ("min_tokens", -1)]


@pytest.mark.parametrize(("name", "value"), RANGES)
def test_what_is_out_of_range_is_refused_in_a_sentence(name, value):
    with pytest.raises(RequestError, match=r"; (give|use) "):
        Sampling(**{name: value})


@pytest.mark.parametrize("options", [{}, {"top_k": 3, "repetition_penalty": 1.4}, {"bad_words": ((4,),)}])
def test_a_greedy_request_has_soft_rows_at_temperature_1(options, logits):
    draft = Draft.chain(tuple(range(10, 15)))
    output = Output(logits, tuple(logits.argmax(-1).tolist()), tuple(logits.amax(-1).tolist()))
    greedy, drawn, warm = (
        Rows(output, Context(0, TOKENS, PROMPT, Sampling(temperature=t, **options), CounterRng(0)), draft, (EOS,))
        for t in (0, 1, 0.6)
    )
    for node in range(-1, 5):
        assert np.array_equal(greedy.soft(node).probs, drawn[node].probs)
        assert np.array_equal(warm.soft(node).probs, warm[node].probs)
        assert greedy[node].only == greedy.soft(node).probs.argmax()
    assert list(greedy.text) == TOKENS


def test_hidden_states_are_those_of_the_last_rows():
    """A work holds pending tokens, then the draft; node -1 is the last pending one."""
    draft, hidden = Draft.chain((10, 11)), {4: torch.arange(10.0).view(5, 2)}
    output = Output(torch.zeros(3, VOCAB), (0, 0, 0), (0.0, 0.0, 0.0), hidden=hidden)
    rows = Rows(output, Context(0, TOKENS, PROMPT, Sampling(), CounterRng(0)), draft)
    assert [rows.hidden(4, node).tolist() for node in (-1, 0, 1)] == [[4, 5], [6, 7], [8, 9]]
