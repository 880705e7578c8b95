"""L2, L4 and L5: the whole engine. Counted laws, seeds, and reported log-probabilities.

L2 counts the first four tokens of n texts per drafter and cache, through scheduler, cache and rollback, each text
under a seed of its own: n = 3,000, on a toy table and on a small transformer, whose law comes from transformers in
float64. This sees what is wrong with rows: a bonus from the wrong one (1,530 texts suffice) and a
residual of the wrong one (1,640). The finer mutants are seen by test_sampler.py, and all of them, on every drafter and
cache, by enumeration (tests/contracts).
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from forerun.config import Choice, Config
from forerun.models.load import load_model
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.testing.mutants import MUTANTS, Mutant
from forerun.types import Sampling

V, M = 8, 4
PROMPT = (1, 5, 2, 7, 1, 5)
SMALL_POOL = "paged:block_size=4,blocks=40"  # 32 seats with 4 blocks each do not fit: requests are preempted
SIZES = Config(max_requests=32, max_step_tokens=2048)
TOY = ToyModel(V, 0)
DRAFTERS = {"ngram": "ngram:width=3,min_match=1", "draft-model": f"draft-model:model=toy:9:{V},depth=3"}


def law_of_toy():
    """Probability of every output of four tokens [8^4]."""
    law = {(): 1.0}
    for _ in range(M):
        law = {(*text, t): w * TOY.probs((*PROMPT, *text))[t] for text, w in law.items() for t in range(V)}
    return np.array(list(law.values()))


def law_of_transformer(judge, folder):
    prefixes = torch.tensor(list(product(range(V), repeat=M - 1)))
    rows = judge(folder, torch.cat([torch.tensor(PROMPT).expand(len(prefixes), -1), prefixes], 1))
    p = torch.softmax(rows[:, len(PROMPT) - 1 :], -1).numpy()  # [8^3, M, V]
    law = p[:, M - 1, :].copy()
    for depth in range(M - 1):
        law *= p[np.arange(len(p)), depth, prefixes[:, depth].numpy()][:, None]
    return law.ravel()


def count(toy, n):
    rig = toy.build()
    texts = rig.write([Ask(PROMPT, Sampling(max_tokens=M, seed=seed)) for seed in range(n)])
    assert rig.engine.stats.draft_failures == 0
    counts = np.zeros(V**M, np.int64)
    np.add.at(counts, [np.ravel_multi_index(text.tokens, (V,) * M) for text in texts], 1)
    return counts, rig


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["contiguous", SMALL_POOL])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_engine_follows_the_law(drafter, cache, fit):
    counts, rig = count(Toy(drafter=DRAFTERS[drafter], cache=cache, model=TOY, config=SIZES), 3000)
    found = fit(counts, law_of_toy())
    assert found.good, found
    assert (rig.engine.stats.preemptions > 0) == (cache == SMALL_POOL)


@pytest.mark.slow
def test_the_engine_follows_the_law_of_a_transformer(tiny, judge, fit):
    drafter = f"draft-model:model={tiny(V, 1)},depth=3"
    toy = Toy(drafter=drafter, cache=SMALL_POOL, model=load_model(tiny(V, 0)), config=SIZES)
    found = fit(count(toy, 3000)[0], law_of_transformer(judge, tiny(V, 0)))
    assert found.good, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the bonus from the previous row", "a residual of the row after the refused token"])
def test_a_wrong_engine_fails(name, fit):
    verifier = Choice("verifier", "mutant", Mutant, MUTANTS[name])
    toy = Toy(drafter=DRAFTERS["draft-model"], verifier=verifier, model=TOY, config=SIZES)
    assert not fit(count(toy, 3000)[0], law_of_toy()).good


# L4, what a seed promises

SEEDS, LENGTH = 200, 128


def asks(longest):
    """200 requests of different prompts, lengths and samplings."""
    rng = np.random.default_rng(0)
    return [
        Ask(
            tuple(rng.integers(0, 16, rng.integers(1, 20)).tolist()),
            Sampling(
                temperature=0.5 + seed % 3 / 2,
                top_p=0.9,
                max_tokens=int(rng.integers(1, longest + 1, 3).min()),
                seed=seed,
            ),
        )
        for seed in range(SEEDS)
    ]


def tokens(rig, numbers):
    return [rig.text(number).tokens for number in numbers]


def with_aborted_neighbours(rig, work):
    """Every fourth request beside one that ends in the middle."""
    mine = []
    for i, ask in enumerate(work):
        mine.append(rig.add(ask))
        if i % 4 == 0:
            doomed = rig.add(replace(ask, sampling=replace(ask.sampling, seed=10_000 + i, max_tokens=50)))
            for _ in range(1 + i % 3):
                rig.step()
            rig.engine.abort(doomed)
    rig.finish()
    return tokens(rig, mine)


def preempted(rig, work):
    """The youngest request loses its slot at every fourth step."""
    mine, step = [rig.add(ask) for ask in work], 0
    while rig.engine.busy:
        seated = [r for r in rig.engine.requests.values() if r.slot is not None]
        if step % 4 == 3 and seated:
            rig.engine._preempt(max(seated, key=lambda r: r.arrival), rig.engine.clock())
        rig.step()
        step += 1
    assert rig.engine.stats.preemptions >= 5
    return tokens(rig, mine)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize(
    ("drafter", "longest"), [("ngram:width=4,min_match=1", LENGTH), ("draft-model:model=toy:9:16,depth=3", 30)]
)
def test_a_seed_gives_its_text_in_any_company(drafter, longest, verifier):
    model, work = ToyModel(16, 4, context_length=192), asks(longest)
    toy = Toy(drafter=drafter, verifier=verifier, cache="paged:block_size=4", model=model)
    serial = toy.build()
    wanted = [serial.write([ask])[0].tokens for ask in work]
    assert len({t for t in wanted if len(t) > 8}) > SEEDS / 4, "the texts do not differ; the test shows nothing"
    written = {
        "together": [t.tokens for t in toy.build().write(work)],
        "preempted": preempted(toy.build(), work),
        "beside requests that end": with_aborted_neighbours(toy.build(), work),
    }
    assert {how: [i for i in range(SEEDS) if texts[i] != wanted[i]] for how, texts in written.items()} == {
        how: [] for how in written
    }


def test_a_coupled_verifier_survives_a_small_pool():
    """Where memory cuts drafts short the text of a seed stays, because it is plain decoding's."""
    toy = Toy(drafter="ngram:width=4,min_match=1", verifier="match", model=ToyModel(16, 4, context_length=192))
    small = replace(toy, cache="paged:block_size=4,blocks=80").build()
    texts = [t.tokens for t in small.write(asks(LENGTH)[:60])]
    assert small.engine.stats.preemptions > 0
    assert texts == [t.tokens for t in toy.plain().build().write(asks(LENGTH)[:60])]


# L5, what log-probabilities are reported


def rescored(judge, folder, prompt, text):
    return torch.log_softmax(judge(folder, [[*prompt, *text.tokens]])[0], -1)[len(prompt) - 1 : -1]


@pytest.mark.parametrize("cache", ["contiguous", "paged:block_size=4"])
@pytest.mark.parametrize("drafter", ["none", "ngram:width=3,min_match=1", "draft-model", "tree"])
def test_logprobs_are_those_of_the_model(drafter, cache, tiny, judge):
    """Accepted, recovered and bonus tokens, each with its 20 best alternatives, against float64 teacher forcing."""
    folder, spoken = tiny(32, 0), {"draft-model": "depth=3", "tree": "depth=2,tree=level"}
    spelled = f"draft-model:model={tiny(32, 1)},{spoken[drafter]}" if drafter in spoken else drafter
    toy = Toy(drafter=spelled, cache=cache, model=load_model(folder), config=SIZES)
    work = [
        Ask(PROMPT[: 1 + seed % 6], Sampling(temperature=0.7, top_k=9, max_tokens=40, seed=seed, logprobs=20))
        for seed in range(12)
    ]
    texts, sources = toy.build().write(work), set()
    for ask, text in zip(work, texts, strict=True):
        truth = rescored(judge, folder, ask.prompt, text)
        assert len(text.emissions) == len(truth) == 40
        for emission, row in zip(text.emissions, truth, strict=True):
            sources.add(emission.source)
            assert emission.logprob.value == pytest.approx(float(row[emission.token]), abs=1e-4)
            assert emission.logprob.rank == 1 + int((row > row[emission.token] + 1e-4).sum()) or _tied(row, emission)
            best = torch.sort(row, descending=True).values[:20].tolist()
            assert [value for _, value in emission.logprob.top] == pytest.approx(best, abs=1e-4)
            assert all(value == pytest.approx(float(row[t]), abs=1e-4) for t, value in emission.logprob.top)
    assert len(sources) == (1 if drafter == "none" else 2), "no draft was accepted; the test shows nothing"


def _tied(row, emission):
    """Whether the rank is that of a token within rounding."""
    return bool(((row - row[emission.token]).abs() < 1e-4).sum() > 1)


def test_logprobs_of_a_text_that_a_stop_string_cut(tiny):
    """The text is trimmed, the tokens that made it are not: one log-probability for each."""
    toy = Toy(drafter="ngram:width=3,min_match=1", model=load_model(tiny(8, 0)), config=SIZES)
    work = [Ask(PROMPT, Sampling(max_tokens=60, seed=seed, stop=("cf", "ba"), logprobs=2)) for seed in range(40)]
    texts = toy.build().write(work)
    assert any(t.finish_reason == "stop" for t in texts)
    for text in texts:
        assert len(text.emissions) == len(text.tokens)
        assert all(e.logprob is not None and len(e.logprob.top) == 2 for e in text.emissions)
        assert "".join(chr(97 + t) for t in text.tokens).startswith(text.text)
        assert "cf" not in text.text
        assert "ba" not in text.text
