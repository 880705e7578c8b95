"""The laws can fail: every known way to be wrong breaks one, and the right rule in the same dress breaks none."""

import operator
import pkgutil
from dataclasses import dataclass

import pytest

from forerun.config import Choice
from forerun.drafters import DRAFTERS, several
from forerun.drafters.contract import SoloDrafter
from forerun.models.toy import ToyModel
from forerun.planners import tetris
from forerun.rng import Purpose
from forerun.testing import LawError, ReuseError, Toy, find, laws
from forerun.testing.checks import of_siblings
from forerun.testing.mutants import MUTANTS, SLIPS, Mutant, Rule, SpoiledDrafter
from forerun.testing.toy import PickyPlanner
from forerun.trees.chain import ChainTree
from forerun.types import Dist, Draft, Facts

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


def test_another_draw_without_a_draft_is_seen():
    laws.no_draft_is_plain(mutant(Rule()), ToyModel(3, 0))
    for wrong in (lambda depth, _: (Purpose.TARGET, depth + 1), lambda depth, _: (Purpose.ACCEPT, depth)):
        with pytest.raises(LawError):
            laws.no_draft_is_plain(mutant(Rule(draw_key=wrong)), ToyModel(3, 0))


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


class NosyPlanner(PickyPlanner):
    """Drops a node for what was drawn there."""

    def worth(self, draft, node):
        return draft.drawn_from(node).prob(draft.tokens[node])


@pytest.mark.parametrize("drafter", [CHAIN, f"{CHAIN},tree=(swor:widths=[2])"])
def test_a_planner_that_looks_at_what_was_drawn_is_seen(drafter):
    laws.exact_is_true(Toy(drafter=drafter, planner=PickyPlanner), PLAIN)
    with pytest.raises(LawError):
        laws.exact_is_true(Toy(drafter=drafter, planner=NosyPlanner), PLAIN)


def nosy(draft, _chances):
    found = []
    for node, parent in enumerate(draft.parents):
        found.append((found[parent] if parent >= 0 else 1) * draft.drawn_from(node).prob(draft.tokens[node]))
    return found


def test_a_budget_that_goes_to_likely_tokens_is_seen(monkeypatch):
    toy = Toy(drafter=CHAIN, planner="tetris")
    laws.exact_is_true(toy, PLAIN)
    monkeypatch.setattr(tetris, "reach", nosy)
    with pytest.raises(LawError):
        laws.exact_is_true(toy, PLAIN)


def test_a_false_claim_of_loss_is_seen():
    with pytest.raises(LawError, match="declare exact=True"):
        laws.lossy_is_needed([Toy(drafter=CHAIN)])
    laws.lossy_is_needed([Toy(drafter=CHAIN, verifier=mutant(Rule(lenience=1.05)))])


class MixedDrafter(SoloDrafter):
    """A chosen token, and a drawn one after it."""

    facts = Facts(draws=True)

    @dataclass(frozen=True)
    class Options:
        seed: int = 103

    def __init__(self, options, setup):
        self.model = ToyModel(setup.vocab, options.seed)

    def propose_one(self, context, budget):
        chosen = len(context.tokens) % self.model.info.vocab_size
        q = Dist(self.model.probs([*context.tokens, chosen]))
        drawn = context.rng.categorical(q, Purpose.DRAFT, 1)
        return Draft.chain((chosen, drawn)[:budget], "mixed", (None, q)[:budget])


class Installed:
    """An entry point of an installed package."""

    name = "mixed"

    def load(self):
        return MixedDrafter


@pytest.fixture
def mixed(monkeypatch):
    monkeypatch.setattr("forerun.registry.entry_points", lambda group: [Installed()] * (group == "forerun.drafters"))
    vars(DRAFTERS).pop("plugins", None)
    yield
    vars(DRAFTERS).pop("plugins", None)


def timid(shares, budget):
    """Leave out what an unlikely drawn token begins: whether it is judged then depends on what it is."""
    for share in shares:
        if share.draft.q is not None and share.draft.drawn_from(0).prob(share.draft.tokens[0]) < 0.3:
            share.draft = Draft()
    return right_merge(shares, budget)


right_merge = several.merged
OTHER = CHAIN.replace("100", "101")
MERGES = {
    "a drawn node joins an elder that was drawn": (f"({CHAIN}),({OTHER})", "joins", lambda _q: True),
    "a drawn node joins an elder that was chosen": (f"mixed,({CHAIN})", "joins", lambda _q: True),
    "two drafters draw with one number": (f"({CHAIN}),({OTHER})", "RngPart", lambda numbers, _place, _count: numbers),
    "an unlikely drawn node is left out": (f"ngram,({CHAIN})", "merged", timid),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("of", sorted({of for of, _, _ in MERGES.values()}))
def test_the_right_merge_is_exact(mixed, of, seed):
    toy = Toy(drafter=f"several:of=[{of}]", model=ToyModel(3, seed))
    laws.a_draft_is_a_draft(toy)
    laws.exact_is_true(toy, PLAIN)


@pytest.mark.parametrize("name", MERGES)
def test_a_wrong_merge_is_seen(mixed, monkeypatch, name):
    of, part, wrong = MERGES[name]
    monkeypatch.setattr(several, part, wrong)
    toy = Toy(drafter=f"several:of=[{of}]")
    with pytest.raises((LawError, ReuseError)):
        laws.exact_is_true(toy, PLAIN)
