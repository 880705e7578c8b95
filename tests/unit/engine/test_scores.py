"""Log-probabilities of a prompt are the model's own, however it was read, and nobody's text changes for them."""

import math
from dataclasses import replace

import pytest

from forerun.errors import RequestError
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.testing.checks import TREE
from forerun.types import Sampling

MODEL = ToyModel(3, 1, context_length=600)
PROMPTS = ((0,), (0, 1), (0, 1, 2, 0, 1), (2, 2, 2, 2), (1, 0) * 8, (0, 1, 1, 2, 0, 2, 1) * 30)
PLAIN = Sampling(max_tokens=9, temperature=0.8, presence_penalty=0.3, logit_bias={1: 0.5})
SCORED = replace(PLAIN, prompt_logprobs=2)
ASKS = [Ask(prompt, replace(SCORED, seed=i)) for i, prompt in enumerate(PROMPTS)]
BARE = [Ask(ask.prompt, replace(ask.sampling, prompt_logprobs=None)) for ask in ASKS]
PAGED = "paged:block_size=4,blocks=200"
WAYS = {
    "plain": {},
    "in small steps": {"max_step_tokens": 7},
    "few at a time": {"max_requests": 2},
}


def toy(**keywords):
    sizes = {name: keywords.pop(name) for name in ("max_step_tokens", "max_requests") if name in keywords}
    return Toy(model=MODEL, verifier="match", **keywords).resized(**sizes)


def hold(text, ask):
    """The scores of one prompt are log p of the model, unbent by what the text is drawn by."""
    first, *rest = text.scores
    assert first is None
    assert len(rest) == len(ask.prompt) - 1
    for i, found in enumerate(rest, 1):
        p = MODEL.probs(ask.prompt[:i])
        best = sorted(range(3), key=lambda token: -p[token])[:2]
        assert found.value == pytest.approx(math.log(p[ask.prompt[i]]), abs=1e-12)
        assert found.rank == 1 + sum(p > p[ask.prompt[i]])
        assert [token for token, _ in found.top] == best
        assert [value for _, value in found.top] == pytest.approx([math.log(p[token]) for token in best], abs=1e-12)


@pytest.mark.parametrize("drafter", ["none", "ngram", TREE, "token-recycling", "bandit"])
@pytest.mark.parametrize("cache", ["contiguous", PAGED])
@pytest.mark.parametrize("way", WAYS)
def test_scores_are_the_models_and_texts_are_what_they_were(way, cache, drafter):
    rig = toy(cache=cache, drafter=drafter, **WAYS[way]).build()
    texts, bare = rig.write(ASKS), rig.write(BARE)
    for text, other, ask in zip(texts, bare, ASKS, strict=True):
        hold(text, ask)
        assert (text.tokens, text.text) == (other.tokens, other.text)
        assert other.scores == ()
    assert rig.engine.stats.failed_requests == 0


@pytest.mark.parametrize("decoder", ["autoregressive", "draft_verify", "exact-extract", "speculative-contrastive"])
def test_other_decoders_say_the_models_scores_too(decoder):
    small = replace(toy(decoder=decoder), model=ToyModel(3, 1))  # the same table, and as long as other models read
    for text, ask in zip(small.build().write(ASKS[:5]), ASKS[:5], strict=True):
        hold(text, ask)


def test_a_decoder_sees_what_it_asked_for():
    rig = toy(drafter="token-recycling").build()
    decoder, rows = rig.engine.members.decoder, []
    commit = decoder.commit

    def watched(seats, plans, outputs):
        rows.extend((len(plan.work.logits), len(output.logits)) for plan, output in zip(plans, outputs, strict=True))
        return commit(seats, plans, outputs)

    decoder.commit = watched
    rig.write(ASKS)
    assert (0, 0) in rows
    assert all(asked == found for asked, found in rows)


def test_what_others_read_is_read_again():
    """A hit in the prefix cache has no rows; afterwards it is one again, for who asks for none."""
    rig = toy(cache=PAGED).build()
    rig.write(BARE)
    numbers = [rig.add(ask) for ask in ASKS]
    rig.finish()
    for number, ask in zip(numbers, ASKS, strict=True):
        hold(rig.text(number), ask)
        assert rig.said[number][-1].stats.cached == 0
    number = rig.add(BARE[-1])
    rig.finish()
    assert rig.said[number][-1].stats.cached > 0


@pytest.mark.parametrize("scheduler", ["fastswitch:turn=2", "fcfs"])
def test_a_pause_amid_a_prompt_leaves_no_gap(scheduler):
    """Small steps and memory for few: prompts are read again, or come back from a copy."""
    tight = toy(cache="paged:block_size=4,blocks=30", scheduler=scheduler, max_step_tokens=16, max_requests=4)
    asks = [Ask(ASKS[i % 5].prompt * 5, replace(SCORED, seed=i, max_tokens=20)) for i in range(12)]
    rig = tight.build()
    for text, ask in zip(rig.write(asks), asks, strict=True):
        hold(text, ask)
    assert rig.engine.stats.preemptions


def test_a_request_that_never_wrote_has_none():
    rig = toy(max_step_tokens=7).build()
    number = rig.add(ASKS[-1])
    rig.step()
    rig.engine.abort(number)
    rig.finish()
    assert rig.text(number).scores == ()


@pytest.mark.parametrize("count", [-1, 21, 1.5, True])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(RequestError, match="prompt_logprobs"):
        Sampling(prompt_logprobs=count)
