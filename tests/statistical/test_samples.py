"""R5: n samples of a prompt. Each can be had again alone, and knowing one says nothing about another.

Independence is tested by chi-square on pairs: the first tokens of samples i and j of a seed, and of neighbouring
seeds, are jointly distributed as p times p. 200,000 pairs on the path from seed to draw, and 6,000 through the engine,
whose part it is to give every request its own stream.
"""

from itertools import combinations

import numpy as np
import pytest

from forerun import LLM, Sampling
from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose, sample_seed
from forerun.types import Dist

V, SAMPLES = 6, 8
MODEL = ToyModel(V, 3)
PROMPT = (1, 4, 2)
P = MODEL.probs(PROMPT)
PAIRS = list(combinations(range(SAMPLES), 2))


def wrong_same_stream(seed, sample):
    return seed


def wrong_neighbours(seed, sample):
    return seed + sample


def wrong_last_two_alike(seed, sample):
    return sample_seed(seed, min(sample, SAMPLES - 2))


def first_token(seed):
    return CounterRng(seed).categorical(Dist(P), Purpose.TARGET, 0)


def pairs_of_one_seed(seed_of, n):
    """Counts [28, V, V] of the first tokens of n seeds, each by one of the 28 pairs of its samples."""
    counts = np.zeros((len(PAIRS), V, V))
    for seed, pair in enumerate(np.random.default_rng(0).integers(0, len(PAIRS), n).tolist()):
        i, j = PAIRS[pair]
        counts[pair, first_token(seed_of(seed, i)), first_token(seed_of(seed, j))] += 1
    return counts.ravel()


def pairs_of_neighbours(seed_of, n):
    """Counts [8, 8, V, V] of sample i of an even seed and sample j of the seed after it."""
    counts = np.zeros((SAMPLES, SAMPLES, V, V))
    for k, (i, j) in enumerate(np.random.default_rng(1).integers(0, SAMPLES, (n, 2)).tolist()):
        counts[i, j, first_token(seed_of(2 * k, i)), first_token(seed_of(2 * k + 1, j))] += 1
    return counts.ravel()


WAYS = {"one seed": (pairs_of_one_seed, len(PAIRS)), "neighbouring seeds": (pairs_of_neighbours, SAMPLES**2)}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_samples_are_independent(way, fit):
    count, groups = WAYS[way]
    found = fit(count(sample_seed, 100_000), np.tile(np.outer(P, P).ravel() / groups, groups))
    assert found.good, found


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        ("one seed", wrong_same_stream),
        ("one seed", wrong_last_two_alike),
        ("neighbouring seeds", wrong_neighbours),
    ],
)
def test_a_wrong_seed_of_a_sample_fails(way, wrong, fit):
    count, groups = WAYS[way]
    found = fit(count(wrong, 20_000), np.tile(np.outer(P, P).ravel() / groups, groups))
    assert not found.good, found


@pytest.fixture(scope="module")
def llm():
    """A toy behind the library's face; `llm(drafter, verifier)`."""

    def make(drafter="none", verifier="rejection"):
        return LLM(
            f"toy:3:{V}", drafter=drafter, verifier=verifier, planner="fixed", max_requests=32, max_step_tokens=2048
        )

    return make


def pairs_through_the_engine(llm, seeds):
    """Counts [V, V] of disjoint pairs: samples 0 and 1, 2 and 3, ... of every seed."""
    counts, sampler = np.zeros((V, V)), llm()
    for seed in range(seeds):
        tokens = [r.tokens[0] for r in sampler.generate([PROMPT], Sampling(max_tokens=1, seed=seed), SAMPLES)]
        np.add.at(counts, (tokens[::2], tokens[1::2]), 1)
    return counts.ravel()


@pytest.mark.slow
def test_samples_of_the_engine_are_independent(llm, fit):
    found = fit(pairs_through_the_engine(llm, 1500), np.outer(P, P).ravel())
    assert found.good, found


@pytest.mark.parametrize("wrong", [wrong_same_stream, wrong_last_two_alike])
def test_an_engine_that_shares_a_stream_fails(wrong, llm, fit, monkeypatch):
    monkeypatch.setattr("forerun.llm.sample_seed", wrong)
    assert not fit(pairs_through_the_engine(llm, 500), np.outer(P, P).ravel()).good


@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize("drafter", ["none", "ngram:min_match=1", f"draft-model:model=toy:9:{V},depth=3"])
def test_every_sample_can_be_had_again(drafter, verifier, llm):
    """n = 1..8 begin with the same samples; each comes again alone, from the seed that it reports."""
    prompts, sampling, sampler = [PROMPT, (0, 5, 0, 5)], Sampling(max_tokens=24, seed=11), llm(drafter, verifier)
    most = sampler.generate(prompts, sampling, SAMPLES)
    assert [r.prompt_tokens for r in most] == [p for p in prompts for _ in range(SAMPLES)]
    assert [r.seed for r in most] == [sample_seed(11, i) for i in range(SAMPLES)] * 2
    assert len({r.tokens for r in most}) == 2 * SAMPLES
    for n in range(1, SAMPLES + 1):
        fewer = sampler.generate(prompts, sampling, n)
        assert [r.tokens for r in fewer] == [r.tokens for p in (0, SAMPLES) for r in most[p : p + n]]
    for result in most:
        alone = sampler.generate([result.prompt_tokens], Sampling(max_tokens=24, seed=result.seed))
        assert [r.tokens for r in alone] == [result.tokens]


def test_samples_without_a_seed_differ_and_report_theirs(llm):
    sampler = llm()
    results = sampler.generate([PROMPT], Sampling(max_tokens=24), 3)
    assert len({r.seed for r in results}) == len({r.tokens for r in results}) == 3
    for result in results:
        assert sampler.generate([PROMPT], Sampling(max_tokens=24, seed=result.seed))[0].tokens == result.tokens


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**64 - 1])
def test_every_seed_that_is_allowed_has_samples(seed, llm):
    assert len({r.tokens for r in llm().generate([PROMPT], Sampling(max_tokens=24, seed=seed), 3)}) == 3


def test_every_prompt_may_have_a_sampling_of_its_own(llm):
    prompts, sampler = [PROMPT, (0, 5, 0, 5)], llm()
    samplings = [Sampling(max_tokens=24, seed=11), Sampling(max_tokens=9, seed=12, temperature=0.5)]
    both = sampler.generate(prompts, samplings, 2)
    apart = [r for p, s in zip(prompts, samplings, strict=True) for r in sampler.generate([p], s, 2)]
    assert [(r.seed, r.tokens) for r in both] == [(r.seed, r.tokens) for r in apart]
    assert [len(r.tokens) for r in both] == [24, 24, 9, 9]
    for wrong in (samplings[:1], [*samplings, samplings[0]], []):
        with pytest.raises(RequestError, match=rf"2 prompts have {len(wrong)} samplings; give one for all, or one for"):
            sampler.generate(prompts, wrong)
    assert not sampler.engine.busy


@pytest.mark.parametrize("n", [0, -1, 1.0, "2", True, None])
def test_a_number_of_samples_that_is_none_is_refused(n, llm):
    sampler = llm()
    with pytest.raises(RequestError, match=r"n is .*; give a whole number of at least 1\."):
        sampler.generate([PROMPT], Sampling(max_tokens=1), n)
    assert not sampler.engine.busy
