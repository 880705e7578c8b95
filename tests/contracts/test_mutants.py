"""The laws can fail: every known way to be wrong breaks one, and the right rule in the same dress breaks none."""

import operator
import pkgutil

import pytest

from forerun.config import Choice
from forerun.testing import LawError, Toy, find, laws
from forerun.testing.checks import of_siblings
from forerun.testing.mutants import MUTANTS, SLIPS, Mutant, Rule, SpoiledDrafter

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


def hold(laws_of_it):
    for _, law in laws_of_it:
        law()


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_in_a_verifier_is_seen(name, monkeypatch):
    slip = SLIPS[name]
    path, function = f"forerun.verifiers.{slip.function}".rsplit(".", 1)
    monkeypatch.setattr(f"{path}.{function}", slip.wrong(operator.attrgetter(function)(pkgutil.resolve_name(path))))
    with pytest.raises(LawError):
        hold(of_siblings(find(slip.verifier, "verifier")))


def spoiled(temperature):
    return Toy(drafter=Choice("drafter", "spoiled", SpoiledDrafter, SpoiledDrafter.Options(temperature)))


def test_a_true_q_is_a_draft_and_exact():
    laws.a_draft_is_a_draft(spoiled(1.0))
    laws.exact_is_true(spoiled(1.0), PLAIN)


@pytest.mark.parametrize("broken", [laws.a_draft_is_a_draft, lambda toy: laws.exact_is_true(toy, PLAIN)])
def test_a_false_q_is_seen(broken):
    with pytest.raises(LawError):
        broken(spoiled(0.8))


def test_a_false_claim_of_loss_is_seen():
    with pytest.raises(LawError, match="declare exact=True"):
        laws.lossy_is_needed([Toy(drafter=CHAIN)])
    laws.lossy_is_needed([Toy(drafter=CHAIN, verifier=mutant(Rule(lenience=1.05)))])
