"""Parallel decoding: what each method guesses, on toy models and by hand."""

from dataclasses import replace

import pytest

from forerun.build import setup_for
from forerun.config import Config, choose
from forerun.drafters import DRAFTERS
from forerun.drafters.lookahead import _Pool
from forerun.drafters.tr_jacobi_msn import BESIDE, COPIED, GUESS, NOISE, template
from forerun.drafting.ahead import Window
from forerun.errors import ConfigError
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose
from forerun.testing import Ask, LawError, ReuseError, Toy, laws
from forerun.testing.reference import Reference
from forerun.types import Context, Dist, Draft, Outcome, Output, Sampling, Verdict, Work

GREEDY = Sampling(temperature=0, max_tokens=40)


def made(spelled, vocab=16):
    choice = choose(DRAFTERS, spelled)
    return choice.member(choice.options, setup_for(Config(), ToyModel(vocab, 0)))


def begun(drafter, tokens, prompt_length=None, **sampling):
    context = Context(0, list(tokens), prompt_length or len(tokens), Sampling(**sampling), CounterRng(0))
    return replace(context, state=drafter.start(context))


def told(drafter, context, draft, best, path=(), token=0):
    """The drafter sees the target's likeliest token after the root and after every node; then they are written."""
    output = Output(None, tuple(best), ())
    drafter.observe([context], [Outcome(Work(0, (0, *draft.tokens)), output, draft, Verdict(path, token))])
    context.tokens.extend([*(draft.tokens[node] for node in path), token])


# jacobi and fastcot


def test_a_block_stays_until_it_is_written():
    drafter = made("jacobi:width=4,blocks=true,price=0")
    context = begun(drafter, (1, 2), temperature=0)
    draft = drafter.propose_one(context, 9)
    assert draft.tokens == (2, 2, 2, 2)
    told(drafter, context, draft, (5, 6, 7, 8, 9), (), 5)
    draft = drafter.propose_one(context, 9)
    assert draft.tokens == (6, 7, 8)
    told(drafter, context, draft, (6, 7, 8, 3), (0, 1, 2), 3)
    assert len(drafter.propose_one(context, 9)) == 4


def test_a_window_slides_and_ends_where_it_is_told_to():
    drafter = made("jacobi:width=3,until=3,price=0")
    context = begun(drafter, (1, 2), temperature=0)
    draft = drafter.propose_one(context, 9)
    told(drafter, context, draft, (5, 6, 7, 8), (), 5)
    draft = drafter.propose_one(context, 9)
    assert draft.tokens == (6, 7, 8)
    told(drafter, context, draft, (6, 7, 9, 4), (0, 1), 9)
    assert not drafter.propose_one(context, 9)


def test_the_glance_changes_with_the_position():
    drafter = made("fastcot:sizes=[3,1],span=2,price=0")
    context = begun(drafter, (1,), temperature=0)
    for size in (3, 3, 1, 1, 1):
        draft = drafter.propose_one(context, 9)
        assert len(draft) == size
        told(drafter, context, draft, (5,) * (size + 1), (), 4)


@pytest.mark.parametrize("drafter", ["jacobi:width=3,price=0", "fastcot:sizes=[3],price=0"])
def test_drawn_windows_of_several_tokens_are_exact(drafter):
    """Longer texts than the contract's, so that drawn guesses stand behind drawn guesses."""
    for seed in range(2):
        toy = Toy(drafter=drafter, model=ToyModel(2, seed))
        laws.exact_is_true(toy, Sampling(max_tokens=5), (0, 1))


@pytest.mark.parametrize("seed", range(2))
def test_windows_and_combs_share_a_tree(seed):
    """Inside `several`, where other drafters' nodes are accepted, too."""
    of = "[(jacobi:width=3,price=0),(lookahead:ngram=3,window=2,guesses=2),(tr-jacobi-msn:noise=2,width=2,copy=2)]"
    toy = Toy(drafter=f"several:of={of}", model=ToyModel(2, seed), planner="fixed:nodes=12")
    laws.exact_is_true(toy, Sampling(max_tokens=5), (0, 1))
    laws.greedy_equals_greedy(replace(toy, model=ToyModel(3, seed)))


right_draft = Window.draft


def sharp(window, context, size, source):
    """Draws from another distribution than it reports."""
    said, window.guesses = window.guesses, [Dist(g.probs**2 / (g.probs**2).sum()) for g in window.guesses]
    draft, window.guesses = right_draft(window, context, size, source), said
    q = None if draft.q is None else tuple(said[i] if q is not None else None for i, q in enumerate(draft.q))
    return replace(draft, q=q)


def timid(window, context, size, source):
    """Leaves out a token that turned out unlikely."""
    draft = right_draft(window, context, size, source)
    unlikely = [i for i, t in enumerate(draft.tokens) if draft.drawn_from(i).prob(t) < 0.4]
    kept = unlikely[0] if unlikely else len(draft)
    return Draft.chain(draft.tokens[:kept], source, draft.q and draft.q[:kept])


def frozen(window, context, size, source):
    """Uses the target's numbers, so that the drawn tokens decide what comes instead of them."""
    draft = right_draft(window, context, size, source)
    tokens = [context.rng.categorical(draft.drawn_from(i), Purpose.TARGET, i) for i in range(len(draft))]
    return replace(draft, tokens=tuple(tokens))


@pytest.mark.parametrize("wrong", [sharp, timid, frozen])
def test_a_wrong_window_is_seen(monkeypatch, wrong):
    monkeypatch.setattr(Window, "draft", wrong)
    with pytest.raises((LawError, ReuseError)):
        laws.exact_is_true(Toy(drafter="jacobi:width=3,price=0"), Sampling(max_tokens=4), (0, 1))


def test_a_target_that_repeats_is_decoded_in_parallel():
    """Whatever the window's guesses, they become right one after the other at least, and many at once in a loop."""
    model = ToyModel(3, 0)
    text = Reference(model).greedy((0,), GREEDY, 40)
    rig = Toy(drafter="jacobi:width=6,price=0", model=model).build()
    number = rig.add(Ask((0,), GREEDY))
    rig.finish()
    assert rig.text(number).tokens == text
    assert rig.said[number][-1].stats.steps < 40


# lookahead


def test_the_pool_keeps_the_latest_grams():
    pool = _Pool(2)
    for gram in ((1, 2), (3, 4), (1, 2), (5, 6)):
        pool.put(7, gram)
    assert pool.latest(7) == [(5, 6), (1, 2)]
    assert pool.latest(8) == []


def test_the_comb_is_a_trunk_with_teeth():
    """Window 3, 4-grams: two tokens of trunk, three teeth of two, each behind its own beginning of the trunk."""
    drafter = made("lookahead:ngram=4,window=3,guesses=2,text=false")
    context = begun(drafter, range(1, 13), temperature=0)
    draft = drafter.propose_one(context, 99)
    assert len(draft) == 8
    trunk, teeth = context.state.trunk, context.state.teeth
    paths = [(), (trunk[0],), tuple(trunk)]
    for column, end in enumerate(context.state.ends):
        assert path(draft, end) == (*paths[column], *teeth[column])


def path(draft, node):
    return (*path(draft, draft.parents[node]), draft.tokens[node]) if node >= 0 else ()


def test_what_is_said_behind_a_tooth_completes_a_gram_and_the_comb_moves_on():
    drafter = made("lookahead:ngram=3,window=3,guesses=2,text=false")
    context = begun(drafter, range(1, 13), temperature=0)
    draft = drafter.propose_one(context, 99)
    state, last = context.state, context.tokens[-1]
    trunk, teeth, ends = list(state.trunk), [list(t) for t in state.teeth], list(state.ends)
    best = [0] * (len(draft) + 1)
    for column, end in enumerate(ends):
        best[end + 1] = 13 + column
    told(drafter, context, draft, best, (), 15)
    assert state.pool.latest(last) == [(*teeth[0], 13)]
    assert state.pool.latest(trunk[0]) == [(*teeth[1], 14)]
    assert state.pool.latest(trunk[1]) == [(*teeth[2], 15)]
    assert state.teeth == [[13], [14], [15]]
    assert state.trunk == [teeth[1][0], teeth[2][0]]


def test_the_comb_moves_by_what_was_accepted():
    drafter = made("lookahead:ngram=3,window=3,guesses=2,text=false")
    context = begun(drafter, range(1, 13), temperature=0)
    draft, state = drafter.propose_one(context, 99), context.state
    teeth = [list(t) for t in state.teeth]
    told(drafter, context, draft, [14] * (len(draft) + 1), (0,), 15)
    assert state.teeth == [[14], [14]]
    assert state.trunk == [teeth[2][0]]
    draft = drafter.propose_one(context, 99)
    assert len(state.teeth) == 3
    assert len(state.trunk) == 2
    draft.check(16, 99)


@pytest.mark.parametrize("accepted", range(6))
@pytest.mark.parametrize("budget", [1, 3, 6, 99])
def test_every_column_but_the_first_hangs_below_the_trunk(budget, accepted):
    drafter = made("lookahead:ngram=4,window=4,guesses=2,text=false")
    context = begun(drafter, range(1, 13), temperature=0)
    draft = drafter.propose_one(context, budget)
    told(drafter, context, draft, [14] * (len(draft) + 1), range(min(accepted, len(draft))), 15)
    assert len(context.state.trunk) == max(len(context.state.teeth) - 1, 0)
    assert {len(teeth) for teeth in context.state.teeth} <= {2}


@pytest.mark.parametrize("budget", range(13))
def test_few_nodes_are_guesses_and_more_are_shared_with_the_comb(budget):
    drafter = made("lookahead:ngram=3,window=3,guesses=3")
    context = begun(drafter, (1, 2, 3, 1, 4, 5, 1, 6, 7, 1), temperature=0)
    draft = drafter.propose_one(context, budget)
    draft.check(16, budget)
    guesses = {(6, 7), (4, 5)} if budget >= 4 else {(6, 7)[:budget]} - {()}
    assert {path(draft, node) for node in range(len(draft))} >= guesses
    assert bool(context.state.ends) == (budget > 6)  # three n-grams of two tokens
    assert list(draft.confidence or ()) == sorted(draft.confidence or (), reverse=True)


def test_a_periodic_text_is_guessed_from_the_pool():
    drafter = made("lookahead:ngram=4,window=2,guesses=2,text=false")
    rig = Toy(drafter="lookahead:ngram=4,window=2,guesses=2,text=false", planner="fixed:nodes=30").build()
    number = rig.add(Ask((0, 1), GREEDY))
    rig.finish()
    assert rig.text(number).tokens == Reference(ToyModel(3, 0)).greedy((0, 1), GREEDY, 40)
    assert rig.said[number][-1].stats.steps < 25
    assert drafter.options.guesses == 2


# tr-jacobi-msn


def test_the_template_puts_likely_paths_first():
    assert template(2, 2, 5) == ((0,), (0, 0), (1,), (0, 1), (1, 0))
    assert len(template(3, 2, 99)) == 2 + 4 + 8


def test_candidates_become_a_tree_beside_a_branch_of_the_text():
    drafter = made("tr-jacobi-msn:noise=3,width=2,leaves=3,copy=2,match=2,price=0")
    context = begun(drafter, (7, 8, 9, 5, 7, 8), temperature=0)
    context.state.candidates, context.state.begin = [[1, 2], [3, 4]], 6
    draft = drafter.propose_one(context, 99)
    found = {path(draft, node) for node in range(len(draft))}
    assert found == {(1,), (1, 3), (1, 3, 8), (9,), (9, 5), (2,)}  # 8: noise, as nothing follows 3 in the text


def test_noise_is_what_followed_the_same_token():
    drafter = made("tr-jacobi-msn:noise=3,width=2,leaves=0,copy=0,price=0")
    context = begun(drafter, (7, 3, 9, 5, 6), temperature=0)
    context.state.candidates, context.state.begin = [[3, 4]], 5
    assert drafter.propose_one(context, 99).tokens == (3, 9, 5)


def test_a_small_draft_is_the_text_then_the_likeliest_guesses_then_noise_then_others():
    drafter = made("tr-jacobi-msn:noise=3,width=2,leaves=3,copy=2,match=2,price=0")
    context = begun(drafter, (7, 8, 9, 5, 7, 8), temperature=0)
    context.state.candidates, context.state.begin = [[1, 2], [3, 4]], 6
    whole = drafter.propose_one(context, 99)
    assert whole.tokens == (9, 5, 1, 3, 8, 2)
    assert whole.confidence == (COPIED, COPIED, GUESS, GUESS, NOISE, BESIDE)
    for budget in range(1, len(whole)):
        assert drafter.propose_one(context, budget) == whole.only(range(budget))


# parallel-branches


def test_later_items_are_written_beside_the_first_and_drafted_in_their_turn():
    """Letters are tokens 0, 1, ...; 'b' marks the second item, 'c' the third."""
    drafter = made("parallel-branches:marks=[a,b,c],branches=2,length=2,price=0")
    context = begun(drafter, (9, 0), temperature=0)
    draft = drafter.propose_one(context, 99)
    assert (draft.tokens, draft.parents) == ((1, 2), (-1, -1))
    told(drafter, context, draft, (9, 5, 6), (), 9)
    draft = drafter.propose_one(context, 99)
    assert (draft.tokens, draft.parents) == ((1, 5, 2, 6), (-1, 0, -1, 2))
    told(drafter, context, draft, (9, 9, 7, 9, 8), (), 9)
    assert not drafter.propose_one(context, 99)  # both are long enough
    context.tokens.append(1)
    assert drafter.propose_one(context, 99).tokens == (5, 7)
    context.tokens.append(5)
    assert drafter.propose_one(context, 99).tokens == (7,)
    context.tokens.append(9)
    assert not drafter.propose_one(context, 99)  # it went another way
    context.tokens.extend([2, 9, 0])
    draft = drafter.propose_one(context, 99)
    assert draft.tokens == (1, 2)  # a new list


def test_items_that_do_not_depend_on_each_other_come_at_once():
    """A toy text that goes round by way of all marks: what follows a mark depends on the mark alone."""
    drafter = "parallel-branches:marks=[x,l,o],length=3,price=0"
    rig = Toy(drafter=drafter, model=ToyModel(26, 33), planner="fixed:nodes=30").build()
    number = rig.add(Ask((0,), GREEDY))
    rig.finish()
    assert rig.text(number).tokens == Reference(ToyModel(26, 33)).greedy((0,), GREEDY, 40)
    assert rig.said[number][-1].stats.steps < 32


@pytest.mark.parametrize(
    "spelled",
    [
        "jacobi:width=0",
        "lookahead:ngram=2",
        "tr-jacobi-msn:width=0",
        "fastcot:sizes=[0]",
        "parallel-branches:length=0",
        "jacobi:price=-1",
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(spelled):
    with pytest.raises(ConfigError, match=r"give .*\."):
        choose(DRAFTERS, spelled)


@pytest.mark.parametrize("drafter", ["jacobi", "lookahead", "tr-jacobi-msn", "fastcot"])
def test_who_has_nothing_to_offer_rests(drafter):
    """A target whose text nobody can guess: most steps draft nothing."""
    ask = Ask((0,), Sampling(temperature=1, max_tokens=400, seed=1))
    toy = Toy(drafter=f"{drafter}:price=0.1", model=ToyModel(100, 0, context_length=512), planner="fixed:nodes=30")
    rig = toy.build()
    number = rig.add(ask)
    rig.finish()
    stats = rig.said[number][-1].stats
    assert 0 < stats.drafted * 0.1 < 3 + 0.03 * stats.steps + (400 - stats.steps)
