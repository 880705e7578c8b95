"""One tree of several drafts: what is the same is one node, and everybody sees what became of his own."""

import re
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from forerun import LLM
from forerun.build import setup_for
from forerun.config import Choice, Config, choose
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import SoloDrafter
from forerun.drafters.several import SeveralDrafter, _Request, _Share, merged
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose, RngPart
from forerun.testing import Ask, Toy, laws
from forerun.types import Context, Dist, Draft, Facts, Outcome, Output, Sampling, Verdict, Work

CHAIN, OTHER = ("(draft-model:model=toy:100,depth=2)", "(draft-model:model=toy:101,depth=2)")
BRANCHES = "(draft-model:model=toy:102,depth=2,tree=(level:width=2))"
COPY = "(ngram:width=2,min_match=1,max_match=2)"
WORDS = "(other-vocab:model=toy:100:a+b+c+ab,depth=2)"
Q, R = (Dist(np.array([0.25, 0.25, 0.5])) for _ in range(2))


@dataclass(frozen=True)
class What:
    """What a scripted drafter proposes."""

    tokens: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()


class Scripted(SoloDrafter):
    """Always the same chain; writes down what it was asked and told."""

    facts = Facts()
    Options = What
    made: list = []  # noqa: RUF012 - every one of a test, in order

    def __init__(self, options, setup):
        self.options, self.hidden, self.asked, self.told, self.stopped = options, options.hidden, [], [], []
        self.made.append(self)

    def start(self, context):
        return f"state of {context.id}"

    def propose_one(self, context, budget):
        assert context.state == f"state of {context.id}"
        self.asked.append(budget)
        return Draft.chain(self.options.tokens[:budget], "".join(map(str, self.options.tokens)))

    def observe(self, batch, outcomes):
        assert [context.state for context in batch] == [f"state of {context.id}" for context in batch]
        self.told += outcomes

    def stop(self, context):
        self.stopped.append(context.id)


class Failing(Scripted):
    """Fails at what its tokens say: 0 start, 1 propose, 2 observe, 3 stop, 4 a draft that is none, 5 no answer."""

    def start(self, context):
        self._fail(0)
        return super().start(context)

    def propose_one(self, context, budget):
        self._fail(1)
        while self.options.tokens == (5,):
            time.sleep(0.01)
        return Draft((9,), (-1,)) if self.options.tokens == (4,) else Draft.chain((1,), "bad")

    def observe(self, batch, outcomes):
        self._fail(2)

    def stop(self, context):
        self._fail(3)

    def _fail(self, where):
        if self.options.tokens == (where,):
            raise ZeroDivisionError


class Row:
    """An entry point of an installed package."""

    def __init__(self, name, member):
        self.name, self.load = name, lambda: member


@pytest.fixture
def installed(monkeypatch):
    rows = [Row("scripted", Scripted), Row("failing", Failing)]
    monkeypatch.setattr("forerun.registry.entry_points", lambda group: rows if group == "forerun.drafters" else [])
    monkeypatch.setattr(Scripted, "made", [])
    vars(DRAFTERS).pop("plugins", None)
    yield Scripted.made
    vars(DRAFTERS).pop("plugins", None)


def tree(*drafts, budget=99):
    shares = [_Share(None, draft=draft) for draft in drafts]
    return merged(shares, budget), [share.places for share in shares]


def test_chosen_drafts_share_their_beginnings():
    draft, places = tree(
        Draft.chain((1, 2, 0), "one"),
        Draft((1, 2, 2), (-1, -1, 0), confidence=(0.9, 0.8, 0.7), source=("x", "y", "z")),
        Draft(),
    )
    assert (draft.tokens, draft.parents) == ((1, 2, 0, 2), (-1, 0, 1, -1))
    assert draft.source == ("one", "one", "one", "y")
    assert draft.confidence == (0.5, 0.5, 0.5, 0.8)
    assert places == [[0, 1, 2], [0, 3, 1], []]
    assert draft.q is None


def test_a_chosen_node_joins_a_drawn_one_that_stays_drawn():
    draft, places = tree(Draft.chain((1, 2, 0), "chosen"), Draft.chain((1, 0), "drawn", (Q, R)))
    assert (draft.tokens, draft.parents) == ((1, 0, 2, 0), (-1, 0, 0, 2))
    assert draft.q == (Q, R, None, None)
    assert draft.source == ("drawn", "drawn", "chosen", "chosen")
    assert places == [[0, 2, 3], [0, 1]]


def test_a_drawn_node_stands_for_itself_and_its_children_move_to_the_eldest():
    draft, places = tree(Draft.chain((1, 0), "one", (Q, Q)), Draft.chain((1, 2), "two", (R, R)))
    assert (draft.tokens, draft.parents) == ((1, 0, 1, 2), (-1, 0, -1, 0))
    assert draft.q == (Q, Q, R, R)
    assert places == [[0, 1], [0, 3]]
    mixed, _ = tree(Draft.chain((1, 0), "chosen, then drawn", (None, Q)), Draft.chain((1,), "drawn", (R,)))
    assert (mixed.tokens, mixed.parents, mixed.q) == ((1, 0, 1), (-1, 0, -1), (None, Q, R))


def test_no_number_is_used_twice():
    class Log(CounterRng):
        def __init__(self):
            super().__init__(0)
            self.keys = []

        def ahead(self, purpose, depth, index=0):
            self.keys.append((purpose, depth, index))
            return super().ahead(purpose, depth, index)

    log = Log()
    for place in range(3):
        own = RngPart(log, place, 3)
        for index in range(4):
            assert own.ahead(Purpose.DRAFT, 1, index) is not None
            own.categorical(Q, Purpose.DRAFT, 1, 4 + index)
            own.bernoulli(0.5, Purpose.DRAFT, 1, 8 + index)
    assert len(set(log.keys)) == 36


def test_the_likeliest_nodes_stay_and_everybody_keeps_what_is_left_of_his():
    sure = Draft((1, 2, 0), (-1, 0, 1), confidence=(0.9, 0.9, 0.9))
    wide = Draft((2, 1, 0, 2, 1), (-1, -1, 0, 1, 0), confidence=(0.6, 0.5, 0.9, 0.9, 0.1))
    whole, _ = tree(sure, wide)
    assert len(whole) == 6  # both have 1, and 2 after it
    for budget, tokens, places in (
        (0, (), [[], []]),
        (2, (1, 2), [[0, 1], []]),  # 0.9, 0.81; the second's 1 and 2 stay, but not without their elder sibling
        (3, (1, 2, 0), [[0, 1, 2], []]),  # 0.729
        (4, (1, 2, 0, 2), [[0, 1, 2], [3, 0, 1]]),  # 0.6
        (5, (1, 2, 0, 2, 0), [[0, 1, 2], [3, 0, 4, 1]]),  # 0.54
    ):
        draft, found = tree(sure, wide, budget=budget)
        assert (draft.tokens, found) == (tokens, places)


def test_what_was_drawn_stays_and_takes_no_room_twice():
    chosen = Draft((1, 0, 2, 2), (-1, 0, 1, 2), confidence=(0.9,) * 4)
    draft, places = tree(chosen, Draft.chain((1, 0), "drawn", (Q, R)), budget=3)
    assert (draft.tokens, draft.q) == ((1, 0, 2), (Q, R, None))
    assert places == [[0, 1, 2], [0, 1]]


def test_the_nodes_go_to_who_was_right(installed):
    """The first chain is always right and the second never: soon all nodes go to the first."""
    toy = Toy(
        drafter="several:of=[(scripted:tokens=[0,0,0,0,0,0]),(scripted:tokens=[1,1,1,1,1,1])]", planner="fixed:nodes=6"
    )
    toy.build().write([Ask((0,), Sampling(temperature=0, max_tokens=40, logit_bias={0: 99.0}))])
    right, wrong = installed
    assert right.asked[:6] == wrong.asked[:6] == [6] * 6  # as if each were alone
    lengths = [
        [sum(source == own for source in map(told.draft.source_of, range(len(told.draft)))) for told in one.told]
        for one, own in ((right, "000000"), (wrong, "111111"))
    ]
    assert lengths[0][:6] == [3, 4, 5, 5, 6, 6]
    assert lengths[1][:6] == [3, 2, 1, 1, 0, 0]
    assert right.stopped == wrong.stopped == [0]


def test_who_draws_gets_what_he_was_worth_or_what_others_leave(installed):
    """By hand: of 8 nodes, beside chosen drafts of 2 and of 8 nodes, and of a wrong one."""

    def room(*drafts, waiting=(0,), accepted=1.0):
        shares = [_Share(None, draft=draft) for draft in drafts]
        shares[waiting[0]].accepted = accepted
        return _Request(shares).room(waiting, 8)

    two, eight, drawn = Draft.chain((1, 2), ""), Draft.chain((1,) * 8, ""), Draft.chain((1,) * 3, "", (Q,) * 3)
    assert room(Draft()) == 8
    assert room(Draft(), two) == 6
    assert room(Draft(), eight) == 4
    assert room(Draft(), eight, accepted=0.2) == 2
    assert room(Draft(), Draft(), eight, waiting=(0, 1)) == 3  # the second is still to be asked
    assert room(Draft(), Draft(), two, waiting=(0, 1)) == 3
    assert room(Draft(), Draft(), waiting=(0, 1)) == 4
    assert room(drawn, Draft(), eight, waiting=(1,)) == 3
    assert room(drawn, Draft(), waiting=(1,)) == 5


def outcome_of(request, path, token, pending=2):
    """What the target's pass over a tree gives: row i of everything says i."""
    nodes = len(request.tree)
    rows = torch.arange(nodes + 1.0)[:, None]
    work = Work(0, (8,) * pending + request.tree.tokens, logits=tuple(range(pending - 1, pending + nodes)))
    states = {3: torch.arange(nodes + pending + 0.0)[:, None]}
    columns = tuple(range(nodes + 1)), tuple(map(float, range(nodes + 1))), tuple(map(float, range(nodes + 1)))
    return Outcome(work, Output(rows, *columns, states), request.tree, Verdict(path, token))


@pytest.fixture
def held(installed):
    """A several of three scripts, one request, and its tree: 1-1-0, with 0-2 and a further 1-2 beside it."""
    spelled = "several:of=[(scripted:tokens=[1,1,0]),(scripted:tokens=[0,2]),(scripted:tokens=[1,2],hidden=[3])]"
    choice = choose(DRAFTERS, spelled)
    made = choice.member(choice.options, setup_for(Config(), ToyModel(3)))
    context = Context(7, [0], 1, Sampling(), CounterRng(0))
    context = replace(context, state=made.start(context))
    draft = made.propose([context], [12])[0]
    assert (draft.tokens, draft.parents) == ((1, 1, 0, 0, 2, 2), (-1, 0, 1, -1, 3, 0))
    return made, context, installed


def test_everybody_sees_his_own_draft_and_what_others_guessed_right(held):
    made, context, drafters = held
    assert made.hidden == (3,)
    made.observe([context], [outcome_of(context.state, (0, 1, 2), 2)])
    first, second, third = (drafter.told[0] for drafter in drafters)
    assert (first.draft.tokens, first.draft.parents, first.verdict) == ((1, 1, 0), (-1, 0, 1), Verdict((0, 1, 2), 2))
    assert second.draft.tokens == (0, 2, 1, 1, 0)  # its own nodes keep their numbers
    assert (second.draft.parents, second.verdict) == ((-1, 0, -1, 2, 3), Verdict((2, 3, 4), 2))
    assert (third.draft.tokens, third.draft.parents) == ((1, 2, 1, 0), (-1, 0, 0, 2))
    assert third.verdict == Verdict((0, 2, 3), 2)
    assert third.draft.source == ("12", "12", "110", "110")
    assert third.work.tokens == (8, 8, 1, 2, 1, 0)
    assert (third.work.parents, third.work.logits) == ((-1, 0, 1, 2, 2, 4), (1, 2, 3, 4, 5))
    assert third.output.logits[:, 0].tolist() == [0, 1, 6, 2, 3]  # the root, then its nodes' rows of the tree
    assert third.output.best == third.output.peak == third.output.mass == (0, 1, 6, 2, 3)
    assert third.output.hidden[3][:, 0].tolist() == [0, 1, 2, 7, 3, 4]
    for outcome in (first, second, third):
        outcome.draft.check(3, 12)
        said = [outcome.draft.tokens[node] for node in outcome.verdict.path]
        assert said == [1, 1, 0]


def test_the_first_rows_are_not_copied(held):
    made, context, drafters = held
    outcome = outcome_of(context.state, (), 2)
    made.observe([context], [outcome])
    seen = drafters[0].told[0]
    assert seen.output.logits.data_ptr() == outcome.output.logits.data_ptr()
    assert (seen.verdict, len(seen.output.logits)) == (Verdict((), 2), 4)


def test_a_pass_without_the_tree_is_passed_on_as_it_is(held):
    made, context, drafters = held
    share = context.state.shares[0]
    before = share.acceptance
    reading = Outcome(Work(0, (1, 2)), Output(torch.zeros(0, 3), (), ()))
    dropped = outcome_of(context.state, (), 1)._replace(draft=Draft())
    made.observe([context], [reading])
    made.observe([context], [dropped])
    assert [drafter.told for drafter in drafters] == [[reading, dropped]] * 3
    assert share.acceptance == before


def test_what_was_cut_is_forgotten_by_everybody(held):
    made, context, drafters = held
    tree = context.state.tree
    part = tree.only([0, 1, 3])
    made.observe([context], [outcome_of(replace(context.state, tree=part), (0, 1), 2)])
    assert context.state.tree == part
    for drafter, share in zip(drafters, context.state.shares, strict=True):
        seen = drafter.told[0]
        own = len(share.draft)
        assert seen.draft.tokens[:own] == share.draft.tokens
        assert [part.tokens[place] for place in share.places] == list(share.draft.tokens)
        assert [seen.draft.tokens[node] for node in seen.verdict.path] == [part.tokens[node] for node in (0, 1)]
        assert len(seen.output.logits) == 1 + len(seen.draft)


@pytest.mark.parametrize("where", range(6))
def test_one_that_fails_costs_its_own_drafts_only(installed, where):
    toy = Toy(drafter=f"several:of=[(failing:tokens=[{where}]),(scripted:tokens=[2,2])]").resized(draft_timeout=0.4)
    rig = toy.build()
    asks = [
        Ask((0,), Sampling(temperature=0, max_tokens=9, logit_bias={2: 99.0})),
        Ask((1, 2), Sampling(seed=1, max_tokens=5)),
    ]
    texts = rig.write(asks)
    assert texts[0].tokens == (2,) * 9
    assert {e.source for e in texts[0].emissions} >= {"22"}
    assert rig.engine.stats.draft_failures > 0
    assert not any(event.error for events in rig.said.values() for event in events)


@pytest.mark.parametrize(
    ("verifier", "passes"), [("rejection", "ragged"), ("rejection", "padded"), ("match", "ragged")]
)
@pytest.mark.parametrize("of", [f"{CHAIN},{OTHER}", f"{COPY},{CHAIN},{BRANCHES},{WORDS}"])
def test_laws(of, verifier, passes):
    """Drawn beside drawn, chosen beside drawn, and everything at once; the contract tests have the rest."""
    toy = Toy(drafter=f"several:of=[{of}]", verifier=verifier, model=ToyModel(3, 1)).resized(passes=passes)
    laws.a_draft_is_a_draft(toy)
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(toy, sampling)
    laws.greedy_equals_greedy(toy)
    laws.neighbours_do_not_matter(toy)
    laws.cancelling_is_free(toy)


def test_greedy_text_of_the_bundled_pair():
    plain = LLM("reference", drafter="none")
    both = LLM(plain.model, plain.tokenizer, drafter="several", planner="fixed:nodes=8")
    prompts = ["Once upon a time", "def add(a, b):\n", plain.tokenizer.chat([{"role": "user", "content": "Hello!"}])]
    sampling = Sampling(temperature=0, max_tokens=48)
    found, wanted = both.generate(prompts, sampling), plain.generate(prompts, sampling)
    assert [r.tokens for r in found] == [r.tokens for r in wanted]
    assert {source for r in found for source in r.sources} == {"ngram", "draft-model", "target"}
    assert both.engine.stats.draft_failures == 0


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("several:of=[]", "holds no drafter; name at least one other, as in several:of=[ngram,draft-model]"),
        ("several:of=[ngram,several]", "holds itself in ['ngram', 'several']; name at least one other"),
        ("several:of=[(several:of=[ngram])]", "holds itself"),
        ("several:of=[ngrm]", "no drafter 'ngrm'; did you mean 'ngram'"),
        ("several:of=[ngram:widht=2]", "'ngram' has no option 'widht'; did you mean 'width'"),
        ("several:", "drafter 'draft-model' needs another model"),
    ],
)
def test_bad_input(spelled, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Toy(drafter=spelled).build()


def test_a_list_is_spelled_and_read_back():
    spelled = "several:of=[ngram,(draft-model:depth=4,tree=svip)]"
    choice = choose(DRAFTERS, spelled)
    assert choice.options.of == ("ngram", "draft-model:depth=4,tree=svip")
    assert choice.spelling == spelled
    assert Choice("drafter", "several", SeveralDrafter, SeveralDrafter.Options()).spelling == "several"
