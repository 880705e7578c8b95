"""The answer is the most probable span of the prompt: by enumeration of every text that plain decoding may write."""

from dataclasses import replace
from math import prod

import pytest

from forerun.decoders.exact_extract import Hunt
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.testing.reference import Reference
from forerun.types import Constraint, Sampling

EOS = 3
DECODER = "exact-extract:longest=4"
PROMPTS = [(0, 1, 2, 0, 1), (2, 0, 0, 1, 2, 1), (1,), (2, 2, 2, 2), (0, 2, 1, 1, 0, 2, 0, 1, 0)]
SAMPLINGS = {
    "plain": Sampling(max_tokens=5),
    "greedy": Sampling(temperature=0, max_tokens=5),
    "shaped": Sampling(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.6, max_tokens=5),
    "cut": Sampling(max_tokens=3),
    "banned": Sampling(max_tokens=5, bad_words=((1,),)),
    "no end yet": Sampling(max_tokens=5, min_tokens=3),
    "constrained": Sampling(max_tokens=5, constraint=Constraint("deny-labels", "ab,cc")),
}


def spans(prompt, longest):
    return {prompt[i:j] for i in range(len(prompt)) for j in range(i + 1, min(i + longest, len(prompt)) + 1)}


def best(model, prompt, sampling, longest=4):
    """The most probable answer, from the law of plain decoding over every text that it may write."""
    sampling = replace(sampling, temperature=sampling.temperature or 1.0)
    known, length = spans(prompt, longest), sampling.max_tokens
    law = Reference(model).law(prompt, sampling, length)

    def answers(text):
        return text[:-1] in known if text[-1] == EOS else len(text) == length and text in known

    found = {text: weight for text, weight in law.items() if answers(text)}
    return max(found, key=found.get)


@pytest.mark.parametrize(("nodes", "planner"), [(5, "fixed"), (9, "auto"), (9, "fixed:nodes=0")])
@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_the_answer_is_the_most_probable_span(prompt, how, nodes, planner):
    sampling = SAMPLINGS[how]
    if how == "cut" and len(prompt) < 3:
        sampling = SAMPLINGS["plain"]
    if (how == "banned" and set(prompt) == {1}) or (how == "no end yet" and len(prompt) < 3):
        pytest.skip("no span can be an answer")
    for seed in range(2):
        model = ToyModel(4, seed, eos=(EOS,))
        toy = Toy(decoder=f"{DECODER},nodes={nodes}", planner=planner, model=model)
        (text,) = toy.build().write([Ask(prompt, replace(sampling, seed=seed))])
        assert text.tokens == best(model, prompt, sampling), (seed, text)
        assert text.error is None


def test_greedy_decoding_finds_another_text_or_a_less_probable_one():
    differs = 0
    for seed in range(6):
        model = ToyModel(4, seed, eos=(EOS,))
        differs += Reference(model).greedy(PROMPTS[0], SAMPLINGS["greedy"], 5) != best(
            model, PROMPTS[0], SAMPLINGS["plain"]
        )
    assert differs >= 3, "the two searches agree everywhere; the tests above show little"


def test_company_memory_and_budgets_do_not_matter():
    model = ToyModel(4, 1, eos=(EOS,))
    toy = Toy(decoder=DECODER, model=model)
    asks = [Ask(prompt, replace(SAMPLINGS["plain"], seed=i)) for i, prompt in enumerate(PROMPTS * 3)]
    alone = [toy.build().write([ask])[0].tokens for ask in asks]
    assert [text.tokens for text in toy.build().write(asks)] == alone
    tight = replace(toy, cache="paged:block_size=4,blocks=9").resized(max_step_tokens=20, max_requests=3)
    rig = tight.build()
    assert [text.tokens for text in rig.write(asks)] == alone
    for cache, room in zip(rig.caches, rig.rooms, strict=True):
        cache.check()
        assert cache.free() == room


def test_most_spans_are_never_read():
    model, prompt = ToyModel(4, 2, eos=(EOS,)), (0, 1, 2, 2, 1, 0, 1, 1, 0, 2, 0, 0)
    rig = Toy(decoder=f"{DECODER},nodes=4", model=model).build()
    number = rig.add(Ask(prompt, SAMPLINGS["plain"]))
    rig.finish()
    assert rig.text(number).tokens == best(model, prompt, SAMPLINGS["plain"])
    assert rig.said[number][-1].stats.drafted < len(spans(prompt, 4)) / 2


def test_a_budget_that_is_too_small_for_a_span_is_said():
    text = Toy(decoder=DECODER, model=ToyModel(4, 1, eos=(EOS,))).resized(max_step_tokens=1).build()
    (found,) = text.write([Ask((0, 1, 2, 0, 1), SAMPLINGS["plain"])])
    assert "raise max_step_tokens" in (found.error or "")


def test_log_probabilities_are_those_of_the_answers_own_places():
    model = ToyModel(4, 1, eos=(EOS,))
    (text,) = Toy(decoder=DECODER, model=model).build().write([Ask(PROMPTS[0], Sampling(max_tokens=5, logprobs=1))])
    law = Reference(model).law(PROMPTS[0], SAMPLINGS["plain"], 5)
    assert prod(2.718281828459045**e.logprob.value for e in text.emissions) == pytest.approx(law[text.tokens])


def test_without_an_end_a_request_is_decoded_plainly():
    ask = Ask((0, 1), Sampling(max_tokens=9, seed=3))
    toy = Toy(decoder=DECODER, model=ToyModel(3, 1))
    assert toy.build().write([ask])[0].tokens == toy.plain().build().write([ask])[0].tokens


def test_a_hunt_that_stops_at_its_first_answer_is_wrong(monkeypatch):
    monkeypatch.setattr(Hunt, "over", property(lambda hunt: not hunt.unread or bool(hunt.best[1])))
    wrong = 0
    for seed in range(6):
        model = ToyModel(4, seed, eos=(EOS,))
        (text,) = Toy(decoder=DECODER, model=model).build().write([Ask(PROMPTS[0], SAMPLINGS["plain"])])
        wrong += text.tokens != best(model, PROMPTS[0], SAMPLINGS["plain"])
    assert wrong
