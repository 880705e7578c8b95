"""The likeliest text with its phrases: by enumeration of every text that plain decoding may write."""

from dataclasses import replace
from math import exp, prod

import pytest

from forerun.decoders import dynamic_beam_allocation as module
from forerun.decoders.dynamic_beam_allocation import DynamicBeamAllocationDecoder
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.testing.reference import Reference
from forerun.types import Constraint, Sampling

EOS, WIDE = 3, 400
PROMPT = (0, 1, 2, 0, 1)
PHRASES = [(), ("a",), ("ca",), ("ab", "cc"), ("ab", "bc"), ("aab",)]
SAMPLINGS = {
    "plain": Sampling(max_tokens=4),
    "greedy": Sampling(temperature=0, max_tokens=4),
    "shaped": Sampling(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.6, max_tokens=4),
    "no end yet": Sampling(max_tokens=4, min_tokens=3),
    "constrained": Sampling(max_tokens=4, constraint=Constraint("regex", "[ab]*c?[abc]*")),
}


def spelled(phrases, beams=WIDE):
    listed = f",phrases=[{','.join(phrases)}]" if phrases else ""
    return f"dynamic-beam-allocation:lead=,beams={beams}{listed}"


def texts(model, phrases, sampling):
    """Every text that holds the phrases, with the probability by which plain decoding writes it."""
    sampling = replace(sampling, temperature=sampling.temperature or 1.0)
    law = Reference(model).law(PROMPT, sampling, sampling.max_tokens)
    return {text: p for text, p in law.items() if holds(text, phrases)}


def holds(tokens, phrases):
    text = "".join("abc."[token] for token in tokens)
    return all(phrase in text for phrase in phrases)


def written(model, phrases, sampling, beams=WIDE, **members):
    toy = Toy(decoder=spelled(phrases, beams), model=model, **members)
    (text,) = toy.build().write([Ask(PROMPT, sampling)])
    return text


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("phrases", PHRASES, ids="+".join)
def test_enough_beams_find_the_likeliest_text(phrases, how):
    for seed in range(2):
        model = ToyModel(4, seed, eos=(EOS,))
        known = texts(model, phrases, SAMPLINGS[how])
        text = written(model, phrases, SAMPLINGS[how])
        assert text.error is None
        assert known[text.tokens] == pytest.approx(max(known.values())), (text, max(known, key=known.get))


def test_few_beams_still_hold_all_phrases():
    """As many as the phrases have tokens, and one more; and each beam more can only help in sum."""
    sampling, sums = Sampling(max_tokens=5), {}
    for beams in (5, 12, 48):
        for seed in range(6):
            model = ToyModel(4, seed, context_length=256, eos=(EOS,))
            text = written(model, ("ab", "cc"), sampling, beams)
            assert holds(text.tokens, ("ab", "cc")), (seed, beams, text)
            sums[beams] = sums.get(beams, 0) + texts(model, ("ab", "cc"), sampling)[text.tokens]
    assert sums[5] <= sums[12] <= sums[48]


def test_what_does_not_fit_is_said():
    model = ToyModel(4, 0, eos=(EOS,))
    text = written(model, ("abcab",), Sampling(max_tokens=4))
    assert "finds no text of 4 tokens with 'abcab'; allow more" in text.error
    assert not text.tokens
    assert "'a'" in written(model, ("a",), Sampling(max_tokens=4, bad_words=((0,),))).error
    with pytest.raises(ConfigError, match="use beams=4"):
        Toy(decoder=spelled(("abc",), 3), model=model).build()
    with pytest.raises(ConfigError, match="at least one character"):
        Toy(decoder="dynamic-beam-allocation:beams=0", model=model).build()
    with pytest.raises(ConfigError, match="cannot write"):
        Toy(decoder=spelled(("z",)), model=ToyModel(3, 0)).build()


def test_without_phrases_one_beam_is_greedy_decoding():
    for seed in range(4):
        model = ToyModel(3, seed)
        sampling = Sampling(temperature=0, max_tokens=8)
        assert written(model, (), sampling, 1).tokens == Reference(model).greedy(PROMPT, sampling, 8)


def test_company_memory_and_planners_do_not_matter():
    model = ToyModel(4, 1, eos=(EOS,))
    toy = Toy(decoder=spelled(("ab", "cc"), 6), model=model)
    asks = [Ask(PROMPT[: 1 + i % 5], Sampling(max_tokens=4 + i % 5, seed=i)) for i in range(9)]
    alone = [toy.build().write([ask])[0].tokens for ask in asks]
    assert all(holds(tokens, ("ab", "cc")) for tokens in alone)
    assert [text.tokens for text in replace(toy, planner="auto").build().write(asks)] == alone
    tight = replace(toy, cache="paged:block_size=4,blocks=16").resized(max_step_tokens=20, max_requests=3)
    rig = tight.build()
    assert [text.tokens for text in rig.write(asks)] == alone
    for cache, room in zip(rig.caches, rig.rooms, strict=True):
        cache.check()
        assert cache.free() == room


def test_no_room_for_the_hypotheses_is_said():
    toy = Toy(decoder=spelled(("ab",), 6), model=ToyModel(4, 1, eos=(EOS,))).resized(max_step_tokens=1)
    (text,) = toy.build().write([Ask(PROMPT, Sampling(max_tokens=6))])
    assert "raise max_step_tokens" in text.error


def test_log_probabilities_are_those_of_the_texts_own_places():
    model = ToyModel(4, 1, eos=(EOS,))
    text = written(model, ("cc",), Sampling(max_tokens=4, logprobs=1), 6)
    law = texts(model, ("cc",), Sampling(max_tokens=4))
    assert prod(exp(e.logprob.value) for e in text.emissions) == pytest.approx(law[text.tokens])


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_small_window_still_leaves_all_phrases(window):
    for seed in range(6):
        model = ToyModel(4, seed, eos=(EOS,))
        toy = Toy(decoder=f"{spelled(('ab', 'cc'), 5)},window={window}", model=model).resized(max_step_tokens=8)
        (text,) = toy.build().write([Ask(PROMPT, Sampling(max_tokens=4 + seed))])
        assert holds(text.tokens, ("ab", "cc")), text
        rig = toy.build()
        rig.add(Ask(PROMPT, Sampling(max_tokens=4 + seed)))
        while rig.engine.busy:
            rig.step()
            for request in rig.engine.requests.values():
                assert all(len(path) - request.state.written <= window for _, path in request.state.live)


def test_what_is_common_is_written_before_the_end():
    rig = Toy(decoder=spelled(("cc",), 4), model=ToyModel(4, 1, eos=(EOS,)), cache="paged:block_size=4").build()
    number = rig.add(Ask(PROMPT, Sampling(max_tokens=20, ignore_eos=True)))
    rig.finish()
    assert len([event for event in rig.said[number] if event.emissions]) > 1
    assert len(rig.text(number).tokens) == 20


WRONG = {
    "beams without shares": lambda decoder, going: sorted(going)[: decoder.options.beams],
    "the first of every worth": lambda decoder, going: list({decoder._worth(p): (c, p) for c, p in going}.values()),
}


def wrong_somewhere():
    for phrases in PHRASES:
        test_enough_beams_find_the_likeliest_text(phrases, "plain")
    test_few_beams_still_hold_all_phrases()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_allocation_is_seen(name, monkeypatch):
    monkeypatch.setattr(DynamicBeamAllocationDecoder, "_dealt", WRONG[name])
    with pytest.raises(AssertionError):
        wrong_somewhere()


def test_a_search_that_stops_at_its_first_text_is_wrong(monkeypatch):
    monkeypatch.setattr(module.Search, "over", property(lambda search: not search.live or bool(search.best[1])))
    with pytest.raises(AssertionError):
        wrong_somewhere()
