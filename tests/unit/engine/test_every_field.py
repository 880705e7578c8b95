"""R6: every field of Sampling has an effect under every drafter, and the effect that it has in plain decoding.

The verifier is `match`, whose text for a seed is plain decoding's, so that equal means equal, token for token.
"""

import re
from dataclasses import fields, replace
from functools import cache

import pytest

from forerun.config import Choice
from forerun.drafters import DRAFTERS
from forerun.models.toy import ToyModel
from forerun.testing import Ask, BushyDrafter, Toy
from forerun.testing.checks import TREE
from forerun.types import Constraint, Sampling

V, EOS = 6, 5
MODEL = ToyModel(V, 3, eos=(EOS,))
PROMPTS = ((0, 1, 2, 0, 1), (3, 3, 3), (4, 2, 4, 2), (1,))
BASE = Sampling(max_tokens=20, seed=0, ignore_eos=True)
CHANGED = {  # field -> a value that must show, and what it shows against where that is not the base
    "temperature": (0.3, BASE),
    "top_k": (2, BASE),
    "top_p": (0.5, BASE),
    "min_p": (0.5, BASE),
    "typical_p": (0.4, BASE),
    "epsilon_cutoff": (0.2, BASE),
    "eta_cutoff": (0.4, BASE),
    "repetition_penalty": (2.0, BASE),
    "presence_penalty": (1.5, BASE),
    "frequency_penalty": (0.8, BASE),
    "no_repeat_ngram": (2, BASE),
    "logit_bias": ({2: 3.0}, BASE),
    "bad_words": (((1,), (0, 2)), BASE),
    "allowed_tokens": ((0, 3, 4), BASE),
    "constraint": (Constraint("deny-labels", "ab,ca,ee"), BASE),
    "min_tokens": (8, replace(BASE, ignore_eos=False)),
    "max_tokens": (7, BASE),
    "stop": (("ab", "c"), BASE),
    "stop_token_ids": ((4,), BASE),
    "ignore_eos": (False, BASE),
    "seed": (1, BASE),
    "logprobs": (3, BASE),
    "prompt_logprobs": (3, BASE),
}
GREEDY_TOO = {"repetition_penalty", "no_repeat_ngram", "logit_bias", "bad_words", "allowed_tokens"}
GREEDY_TOO |= {"frequency_penalty", "constraint"}
SPELLED = [*DRAFTERS, TREE.replace("toy:100", f"toy:100:{V}"), BushyDrafter]


def drafter_of(row):
    """The row's toy options, with second models that know all of the target's tokens."""
    if not isinstance(row, str) or ":" in row:
        return row
    member = DRAFTERS[row]
    spelled = Choice("drafter", row, member, member.toy()).spelling
    return re.sub(r"(toy:\d+)(?::([a-z+]+))?(?![\d:])", lambda m: f"{m[1]}:{larger(m[2])}", spelled)


def larger(words):
    """A vocabulary as it is spelled: so many letters, or all of these and the words."""
    return "+".join(dict.fromkeys([*MODEL.words, *words.split("+")])) if words else V


def written(drafter, sampling):
    rig = Toy(drafter=drafter, verifier="match", model=MODEL).build(len(PROMPTS))
    texts = rig.write([Ask(prompt, sampling) for prompt in PROMPTS])
    assert rig.engine.stats.draft_failures == 0
    return [replace(t, emissions=tuple(e._replace(source="") for e in t.emissions)) for t in texts]


def plain(sampling):
    return written("none", sampling)


@cache
def changed(field, temperature):
    """What is asked where a field is changed, and its text in plain decoding."""
    value, base = CHANGED[field]
    sampling = replace(replace(base, temperature=temperature), **{field: value})
    return sampling, plain(sampling)


def test_no_field_is_left_out():
    assert set(CHANGED) == {f.name for f in fields(Sampling)}


@pytest.mark.parametrize("field", CHANGED)
def test_a_field_has_an_effect(field):
    value, base = CHANGED[field]
    assert plain(base) != plain(replace(base, **{field: value}))


@pytest.mark.parametrize("drafter", SPELLED, ids=lambda d: d if isinstance(d, str) else d.__name__)
@pytest.mark.parametrize("field", CHANGED)
def test_a_field_has_its_effect_under_every_drafter(field, drafter):
    for temperature in (BASE.temperature, 0.0) if field in GREEDY_TOO else (BASE.temperature,):
        sampling, wanted = changed(field, temperature)
        assert written(drafter_of(drafter), sampling) == wanted


@pytest.mark.parametrize("drafter", ["none", BushyDrafter], ids=["plain", "tree"])
def test_what_a_field_promises_holds_in_the_text(drafter):
    """Not only the same as plain: what each ban and limit says."""

    def texts(**changed):
        return [t.tokens for t in written(drafter, replace(BASE, max_tokens=30, **changed))]

    assert all(set(t) <= {0, 3, 4} for t in texts(allowed_tokens=(0, 3, 4)))
    assert all(1 not in t for t in texts(bad_words=((1,),)))
    assert all(" 0 2 " not in f" {' '.join(map(str, t))} " for t in texts(bad_words=((0, 2),)))
    for prompt, t in zip(PROMPTS, texts(no_repeat_ngram=3), strict=True):
        whole = (*prompt, *t)
        grams = [whole[i : i + 3] for i in range(len(prompt) - 2 if len(prompt) > 2 else 0, len(whole) - 2)]
        assert len(grams) == len(set(grams))
    assert all(EOS not in t[:8] for t in texts(min_tokens=8, ignore_eos=False))
    assert all(t[-1] == EOS or len(t) == 30 for t in texts(ignore_eos=False))
    assert all(2 not in t for t in texts(logit_bias={2: -float("inf")}))
