"""Decoders over several models are exact for the law that they name: every outcome visited, against that law alone."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from forerun.decoders.speculative_contrastive import UNLIKELY
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.toy import ToyModel
from forerun.sampling import Shaper
from forerun.testing import Ask, Reference, Toy, distance, laws
from forerun.testing.checks import TREE
from forerun.testing.toy import BushyDrafter
from forerun.types import Sampling

CHAIN = "draft-model:model=toy:100,depth=2"
AMATEUR, THIRD = ToyModel(3, 100), ToyModel(3, 101)
ENSEMBLE = "speculative-ensemble:models=[toy:100,toy:101],weights=[0.5,0.3,0.2]"
CONTRASTIVE = "speculative-contrastive:amateur=toy:100,alpha=0.3,beta=0.7"
FS_GEN = "fs-gen:fast=toy:100,sure=0.6"
LENGTH = 3


def ensemble(target):
    return np.log(0.5 * target + 0.3 * AMATEUR.table + 0.2 * THIRD.table)


def contrastive(target):
    contrast = 1.7 * np.log(target) - 0.7 * np.log(AMATEUR.table)
    return np.where(target >= 0.3 * target.max(-1, keepdims=True), contrast, np.log(target) - UNLIKELY)


def fast_and_slow(target):
    return np.log(np.where(AMATEUR.table.max(-1, keepdims=True) >= 0.6, AMATEUR.table, target))


LAWS = {ENSEMBLE: ensemble, CONTRASTIVE: contrastive, FS_GEN: fast_and_slow}


def model_of(law, seed):
    """A toy whose own law is the fused one."""
    model = ToyModel(3, seed)
    model._logits = torch.from_numpy(law(model.table))
    return model


@cache
def fused_laws(decoder, seed):
    """The laws of all samplings, and the greedy texts after all prompts."""
    fused = Reference(model_of(LAWS[decoder], seed))
    asks = list(product(laws.PROMPTS, laws.GREEDY))
    return (
        [fused.law(laws.PROMPT, sampling, LENGTH) for sampling in laws.SAMPLINGS.values()],
        [(Ask(*ask), fused.greedy(*ask, ask[1].max_tokens)) for ask in asks],
    )


@pytest.mark.parametrize("verifier", ["rejection", "match"])
@pytest.mark.parametrize("drafter", ["none", CHAIN, TREE, BushyDrafter], ids=["none", "chain", "tree", "bushy"])
@pytest.mark.parametrize("decoder", LAWS, ids=lambda spelled: spelled.partition(":")[0])
def test_the_law_is_the_one_that_is_named(decoder, drafter, verifier):
    for seed, memory in ((0, "contiguous"), (1, "paged")):
        toy = Toy(drafter=drafter, verifier=verifier, decoder=decoder, cache=memory, model=ToyModel(3, seed))
        sampled, greedy = fused_laws(decoder, seed)
        for sampling, wanted in zip(laws.SAMPLINGS.values(), sampled, strict=True):
            assert distance(wanted, laws.output_law(toy, sampling)) < laws.TIGHT
        for ask, text in greedy:
            assert toy.build().write([ask])[0].tokens == text


@pytest.mark.parametrize("decoder", LAWS, ids=lambda spelled: spelled.partition(":")[0])
def test_the_law_is_the_same_in_padded_passes(decoder):
    toy = Toy(drafter=TREE, decoder=decoder).resized(passes="padded")
    fused = Reference(model_of(LAWS[decoder], 0))
    for sampling in laws.SAMPLINGS.values():
        law = laws.output_law(toy, sampling)
        assert distance(fused.law(laws.PROMPT, sampling, LENGTH), law) < laws.TIGHT


@pytest.mark.parametrize("decoder", LAWS, ids=lambda spelled: spelled.partition(":")[0])
def test_another_law_is_seen(decoder):
    """The proof can fail: neither the target's law, nor that of other weights, passes for the fused one."""
    wanted = Reference(model_of(LAWS[decoder], 0)).law(laws.PROMPT, laws.SAMPLINGS["plain"], LENGTH)
    near = {"0.7": "0.8", "0.6": "0.45", "0.2]": "0.25]"}
    other = next(decoder.replace(old, new) for old, new in near.items() if old in decoder)
    for spelled in ("draft_verify", other):
        law = laws.output_law(Toy(drafter=CHAIN, decoder=spelled), laws.SAMPLINGS["plain"])
        assert distance(wanted, law) > 1e-3


# Entropy adaptive decoding: the law depends on the whole text


def writers(target, small, text, start, options):
    """Who writes each token after `start`, by the rule read from its beginning."""
    threshold, window, hold = options
    writer, written, seen = small, hold, []
    for end in range(start, len(text) + 1):
        p = writer.probs(text[:end])
        seen.append(-(p * np.log(p)).sum())
        wanted = target if np.mean(seen[-window:]) > threshold else small
        if wanted is not writer and written >= hold:
            writer, written = wanted, 0
        written += 1
        yield writer


def adaptive_law(target, prompt, length, options):
    texts = {(): 1.0}
    for _ in range(length):
        grown = {}
        for output, weight in texts.items():
            *_, writer = writers(target, AMATEUR, (*prompt, *output), len(prompt), options)
            for token, chance in enumerate(writer.probs((*prompt, *output))):
                grown[*output, token] = weight * chance
        texts = grown
    return texts


@pytest.mark.parametrize("drafter", ["none", CHAIN, TREE, BushyDrafter], ids=["none", "chain", "tree", "bushy"])
@pytest.mark.parametrize("options", [(0.8, 2, 2), (0.6, 3, 1), (0.7, 1, 3)])
def test_the_models_take_turns_by_mean_entropy(drafter, options):
    threshold, window, hold = options
    decoder = f"entropy-adaptive:small=toy:100,threshold={threshold},window={window},hold={hold}"
    sampling = Sampling(max_tokens=4)
    for seed in (0, 2):
        target = ToyModel(3, seed)
        law = laws.output_law(Toy(drafter=drafter, decoder=decoder, model=target), sampling)
        assert distance(adaptive_law(target, laws.PROMPT, 4, options), law) < laws.TIGHT


def test_the_rule_of_turns_is_told_from_its_neighbours():
    """Both models write somewhere, and window, hold and threshold all matter in what was proved above."""
    target, by = ToyModel(3, 0), {}
    for options in ((0.8, 2, 2), (0.8, 1, 2), (0.8, 2, 1), (0.6, 2, 2)):
        by[options] = adaptive_law(target, laws.PROMPT, 4, options)
    assert all(distance(one, other) > 1e-3 for one, other in pairwise(by.values()))


# Limits


@pytest.mark.parametrize(
    "decoder",
    [
        "speculative-ensemble:models=[toy:100],weights=[2,0]",
        "speculative-contrastive:amateur=toy:100,alpha=0,beta=0",
        "fs-gen:fast=toy:100,sure=1",
        "entropy-adaptive:small=toy:100,threshold=0",
    ],
)
def test_the_limit_is_the_targets_law(decoder):
    for drafter in (CHAIN, BushyDrafter):
        toy = Toy(drafter=drafter, decoder=decoder)
        for sampling in laws.SAMPLINGS.values():
            laws.exact_is_true(toy, sampling)
        laws.greedy_equals_greedy(toy)


@pytest.mark.parametrize("decoder", ["fs-gen:fast=toy:100,sure=0", "entropy-adaptive:small=toy:100,threshold=9"])
def test_the_other_limit_is_the_small_models_law(decoder):
    wanted = Reference(AMATEUR).law(laws.PROMPT, laws.SAMPLINGS["shaped"], LENGTH)
    toy = Toy(drafter=CHAIN, decoder=decoder)
    assert distance(wanted, laws.output_law(toy, laws.SAMPLINGS["shaped"])) < laws.TIGHT
    rig = toy.build()
    number = rig.add(Ask(laws.PROMPT, Sampling(max_tokens=12, seed=1)))
    rig.finish()
    stats = rig.said[number][-1].stats
    assert stats.accepted == stats.drafted > 0, "what the small model drafts is what it writes"


# Bad input, and harm


@pytest.mark.parametrize(
    ("decoder", "sentence"),
    [
        ("speculative-ensemble:weights=[1,1,1]", "3 weights for 2 models"),
        ("speculative-ensemble:weights=[1,-1]", "not all 0"),
        ("speculative-ensemble:weights=[0,0]", "not all 0"),
        ("speculative-ensemble:models=[]", "names none; give model=FOLDER"),
        ("speculative-contrastive:alpha=1.1", "share of the best"),
        ("speculative-contrastive:beta=-0.5", "at least 0"),
        ("fs-gen:sure=2", "probability"),
        ("entropy-adaptive:threshold=-1", "nats"),
        ("entropy-adaptive:window=0", "at least 1"),
        ("entropy-adaptive:hold=0", "at least 1"),
        ("fs-gen:fast=toy:100:4", "shares the target's tokenizer"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(decoder, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Toy(decoder=decoder).build()


def test_a_reader_of_shorter_texts_is_refused():
    with pytest.raises(ConfigError, match="set context_length=64"):
        Toy(decoder="fs-gen:fast=toy:100", model=ToyModel(3, 0, context_length=65)).build()
    toy = Toy(decoder="fs-gen:fast=toy:100", model=ToyModel(3, 0, context_length=65)).resized(context_length=64)
    assert len(toy.build().write([Ask((0, 1), Sampling(max_tokens=5))])[0].tokens) == 5


def test_a_broken_reader_ends_the_request_that_met_it_alone():
    rig = Toy(drafter=CHAIN, decoder=ENSEMBLE).build()
    broken = rig.runners[1].model  # the drafter opened the first
    broken._logits = broken._logits.clone()
    broken._logits[1, 2] = torch.nan
    fine, met = rig.write([Ask((0, 0), Sampling(max_tokens=1, seed=2)), Ask((1, 2), Sampling(max_tokens=1, seed=2))])
    assert fine.error is None
    assert len(fine.tokens) == 1
    assert "not finite" in met.error
    laws.require([cache.free() for cache in rig.caches] == rig.rooms, "room was not given back")


def test_penalties_and_temperature_apply_to_the_fused_law_once():
    sampling = replace(laws.SAMPLINGS["shaped"], max_tokens=1)
    law = laws.output_law(Toy(decoder=ENSEMBLE), sampling)
    shaper = Shaper(sampling, laws.PROMPT, len(laws.PROMPT))
    logits = torch.from_numpy(ensemble(ToyModel(3, 0).table))[laws.PROMPT[-2], laws.PROMPT[-1]]
    p = shaper.probabilities(logits[None], lambda _: ())[0]
    assert {token: chance for (token,), chance in law.items()} == pytest.approx(
        {t: float(c) for t, c in enumerate(p) if c > 0}
    )


@pytest.mark.parametrize("decoder", ["speculative-ensemble", "speculative-contrastive", "fs-gen", "entropy-adaptive"])
def test_on_the_bundled_pair_drafts_change_nothing(decoder):
    """Greedy text of a law over real models, and sampled text by seed, do not depend on who guesses."""
    prompt = "Once upon a time there was a"
    kept = {
        "decoder": decoder,
        "verifier": "match",
        "planner": "fixed",
        "threads": 1,
        "max_requests": 2,
        "context_length": 128,
    }
    plain = LLM(drafter="none", **kept)
    drafted = LLM(plain.model, plain.tokenizer, drafter="draft-model:depth=3", **kept)
    for sampling in (Sampling(temperature=0, max_tokens=40), Sampling(seed=3, max_tokens=40)):
        alone, fast = (llm.generate([prompt], sampling)[0] for llm in (plain, drafted))
        assert fast.tokens == alone.tokens
        assert fast.stats.steps < alone.stats.steps
        assert fast.caveat == alone.caveat != plain.plain().engine.caveat
