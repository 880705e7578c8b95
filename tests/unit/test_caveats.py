"""What a result says of itself: whose fault it is that a text is not the model's own, or does not come again."""

import pytest

from forerun.build import FAMILIES, caveat, seed_caveat
from forerun.testing import Toy
from forerun.testing.toy import PickyPlanner

EXACT = [name for name, member in FAMILIES["verifier"].items() if member.facts.exact]
LOSSY = [name for name, member in FAMILIES["decoder"].items() if not member.facts.exact]


@pytest.mark.parametrize("verifier", EXACT)
@pytest.mark.parametrize("decoder", LOSSY)
def test_an_exact_verifier_beside_a_lossy_decoder(decoder, verifier):
    """The verifier keeps its word, the decoder does not, and is what has to go."""
    said = caveat(Toy(decoder=decoder, verifier=verifier).choices)
    assert f"decoder '{decoder}'" in said
    assert verifier not in said
    assert said.endswith("leave decoder out for the model's own.")


def test_exact_members_say_nothing():
    assert caveat(Toy(verifier="rejection", planner="auto").choices) is None


@pytest.mark.parametrize(
    ("members", "who"),
    [
        ({"planner": "auto"}, "planner 'auto' goes by measured times"),
        ({"planner": "fixed", "drafter": "bandit"}, "drafter 'bandit' goes by measured times and"),
        ({"planner": "fixed", "drafter": "suffix-decoding"}, "drafter 'suffix-decoding' goes by earlier requests"),
        ({"planner": PickyPlanner, "drafter": "ngram"}, None),
    ],
)
def test_a_seed_comes_again_where_nothing_moves(members, who):
    said = seed_caveat(Toy(verifier="rejection", **members).choices)
    assert (said or "").startswith(who or "")
    assert (said is None) == (who is None)
    assert seed_caveat(Toy(verifier="match", **members).choices) is None


def test_a_decoder_that_learns_is_said_under_every_verifier():
    for verifier in ("match", "rejection"):
        said = seed_caveat(Toy(verifier=verifier, decoder="asap-gad", planner="fixed").choices)
        assert (said or "").startswith("decoder 'asap-gad' goes by earlier requests")
