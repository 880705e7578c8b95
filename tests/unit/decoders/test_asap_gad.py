"""Samples approach the exact law given the constraint, and plain masking does not: by enumeration, sample by sample."""

from dataclasses import replace

import pytest

from forerun.decoders.asap_gad import Beginning
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.testing import Ask, Toy
from forerun.testing.exhaustive import distance
from forerun.testing.laws import conditional, law_after
from forerun.testing.reference import Reference
from forerun.types import Constraint, Sampling

PROMPT = (0, 1)
WISH = Constraint("choice", "aab,abb,baa,bcc,cab,cca")
SAMPLING = Sampling(max_tokens=3, constraint=WISH)
SHAPED = replace(SAMPLING, temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.6)
TREE = "draft-model:model=toy:100,depth=2,tree=level"


class Alone(Toy):
    """A toy whose requests share one scope, and so learn of each other."""

    def build(self):
        rig = super().build()
        rig.scopes = None
        return rig


@pytest.mark.parametrize("sampling", [SAMPLING, SHAPED], ids=["plain", "shaped"])
@pytest.mark.parametrize("drafter", ["none", TREE])
def test_the_law_of_samples_falls_to_the_conditional_one(drafter, sampling):
    model = ToyModel(3, 0)
    wanted = conditional(model, PROMPT, sampling)
    toy = Toy(decoder="asap-gad", drafter=drafter, model=model)
    far = [distance(law_after(toy, PROMPT, sampling, past), wanted) for past in (0, 60)]
    masked = distance(law_after(Toy(drafter=drafter, model=model), PROMPT, sampling, 60), wanted)
    assert far[0] == pytest.approx(masked)
    assert masked > 0.02, "plain masking is right here; the test shows nothing"
    assert far[-1] < 1e-9, far


def test_what_is_known_is_never_too_little():
    model, toy = ToyModel(3, 1), Alone(decoder="asap-gad", model=ToyModel(3, 1))
    rig = toy.build()
    true = sum(
        weight for text, weight in Reference(model).law(PROMPT, Sampling(max_tokens=3), 3).items() if text in ALLOWED
    )
    shares = []
    for seed in range(40):
        rig.write([Ask(PROMPT, replace(SAMPLING, seed=seed), CounterRng(seed))])
        (trunk,) = rig.engine.members.decoder.known.values()
        shares.append(trunk.share)
    assert shares == sorted(shares, reverse=True)
    assert min(shares) >= true - 1e-12
    assert shares[-1] == pytest.approx(true)


ALLOWED = {tuple("abc".index(c) for c in word) for word in WISH.text.split(",")}


def test_a_wrong_share_is_seen(monkeypatch):
    def own_weight_only(node):
        node.share = node.allowed

    monkeypatch.setattr(Beginning, "settle", own_weight_only)
    model = ToyModel(3, 0)
    found = law_after(Toy(decoder="asap-gad", model=model), PROMPT, SAMPLING, 60)
    far = distance(found, conditional(model, PROMPT, SAMPLING))
    assert far > 1e-3


def test_prompts_scopes_and_samplings_do_not_learn_of_each_other():
    rig = Alone(decoder="asap-gad:prompts=3").build()
    for prompt, sampling in [(PROMPT, SAMPLING), (PROMPT, SHAPED), ((1, 1), SAMPLING), ((2,), SAMPLING)]:
        rig.write([Ask(prompt, sampling)])
    rig.write([Ask(PROMPT, replace(SAMPLING, temperature=0)), Ask(PROMPT, Sampling(max_tokens=3))])
    known = rig.engine.members.decoder.known
    assert len(known) == 3
    assert [key[1] for key in known] == [PROMPT, (1, 1), (2,)]


def test_what_is_remembered_is_bounded():
    rig = Alone(decoder="asap-gad:beginnings=4").build()
    for seed in range(12):
        assert rig.write([Ask(PROMPT, replace(SAMPLING, seed=seed))])[0].tokens in ALLOWED
    (trunk,) = rig.engine.members.decoder.known.values()
    assert trunk.count == 4
