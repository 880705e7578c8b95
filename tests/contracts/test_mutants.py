"""The laws can fail: every known way to be wrong breaks one, and the right rule in the same dress breaks none."""

import pytest

from forerun.config import Choice
from forerun.testing import LawError, Toy, laws
from forerun.testing.mutants import MUTANTS, Mutant, Rule, SpoiledDrafter
from forerun.trees.chain import ChainTree

CHAIN = "draft-model:model=toy:100,depth=2"
PLAIN = laws.SAMPLINGS["plain"]


def mutant(rule):
    return Choice("verifier", "mutant", Mutant, rule)


def test_the_right_rule_is_exact():
    laws.exact_is_true(Toy(drafter=CHAIN, verifier=mutant(Rule())), PLAIN)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_seen(name):
    with pytest.raises(LawError):
        laws.exact_is_true(Toy(drafter=CHAIN, verifier=mutant(MUTANTS[name])), PLAIN)


def spoiled(temperature):
    return Toy(drafter=Choice("drafter", "spoiled", SpoiledDrafter, SpoiledDrafter.Options(temperature)))


def test_a_true_q_is_a_draft_and_exact():
    laws.a_draft_is_a_draft(spoiled(1.0))
    laws.exact_is_true(spoiled(1.0), PLAIN)


@pytest.mark.parametrize("broken", [laws.a_draft_is_a_draft, lambda toy: laws.exact_is_true(toy, PLAIN)])
def test_a_false_q_is_seen(broken):
    with pytest.raises(LawError):
        broken(spoiled(0.8))


class Spoiling(ChainTree):
    """Draws a chain of one token, and looks at the token where it may not."""

    def __init__(self, options, setup, how="drops"):
        super().__init__(options, setup)
        self.how = how

    def grow(self, growth):
        look = growth.drawn([-1], 1)
        yield look
        child = look.child(0)
        if self.how == "drops" and child.chance < 0.3:
            return
        if self.how == "tells":
            child.confidence = child.chance
        if self.how == "swaps":  # reports the q of the draw, and drafts another token half the time
            child.token = (child.token + 1) % 3
        growth.plant(-1, child)


@pytest.mark.parametrize("how", ["drops", "tells", "swaps"])
def test_a_tree_that_looks_at_what_it_drew_is_seen(how):
    class Wrong(Spoiling):
        def __init__(self, options, setup):
            super().__init__(options, setup, how)

    toy = Toy(drafter=CHAIN, tree=Choice("tree", "wrong", Wrong, Wrong.Options()))
    with pytest.raises(LawError, match="comes with probability"):
        laws.a_draft_is_a_draft(toy)
    if how != "tells":
        with pytest.raises(LawError):
            laws.a_step_is_exact(toy, PLAIN)


def test_a_false_claim_of_loss_is_seen():
    with pytest.raises(LawError, match="declare exact=True"):
        laws.lossy_is_needed([Toy(drafter=CHAIN)])
    laws.lossy_is_needed([Toy(drafter=CHAIN, verifier=mutant(Rule(lenience=1.05)))])
