"""What trees grow into, beside plain searches; every row of the table far and near, and bad options."""

import json
from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch

from forerun.config import choose
from forerun.errors import ConfigError
from forerun.growth import Growth
from forerun.host import fetch
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng
from forerun.testing import outcomes
from forerun.trees import TREES
from forerun.trees.sequoia import plan, values
from forerun.trees.static import best_paths
from forerun.types import Context, Costs, Output, Sampling, Setup

PROMPT = (0, 1)
MODEL = ToyModel(6, 3)
GREEDY = Sampling(temperature=0)


FREE = Costs((1, 32), (1.0, 1.0))
PLAIN = Sampling()


def setup(costs=FREE):
    cpu, nothing = torch.device("cpu"), None
    return Setup(6, 64, (), 1, cpu, torch.float32, nothing, nothing, nothing, lambda: costs, tree)


def tree(spelled, **facts):
    choice = choose(TREES, spelled)
    return choice.member(choice.options, setup(**facts))


def grow(grown, budget=8, depth=3, rng=None, *, sampling=PLAIN, model=MODEL, far=False, passes=99, bar=0.0):
    """What a tree, or one that is spelled, makes of the model's distributions."""
    context = Context(0, PROMPT, len(PROMPT), sampling, rng or CounterRng(0))
    growth = Growth(context, budget, depth, (tree(grown) if isinstance(grown, str) else grown).grow, bar=bar)
    while growth.looking and len(growth.asked) <= passes:
        look = growth.newest
        paths = [growth.path(node) for node in look.nodes]
        logits = torch.from_numpy(np.log([model.probs((*PROMPT, *path)) for path in paths]))
        best, peak = logits.argmax(-1).tolist(), logits.amax(-1).tolist()
        mass = None if look.worthwhile else tuple((logits - logits.amax(-1, keepdim=True)).exp().sum(-1).tolist())
        answers = fetch(look(logits)) if far and look.worthwhile else None
        growth.answer(len(growth.asked) - 1, Output(logits, tuple(best), tuple(peak), mass, answers=answers))
        growth.go_on()
    return growth.draft("test")


def paths(draft):
    """The tokens down to every node."""
    found = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


SAMPLINGS = {
    "plain": PLAIN,
    "cut": Sampling(temperature=0.7, top_k=2),
    "bent": Sampling(bad_words=((3,), (1, 2)), repetition_penalty=1.3),
    "greedy": GREEDY,
    "greedy, bent": replace(GREEDY, frequency_penalty=2.0),
}


def reach(path, model=MODEL):
    chance = 1.0
    for at, token in enumerate(path):
        chance *= model.probs((*PROMPT, *path[:at]))[token]
    return chance


def likeliest(nodes, depth):
    """The most probable paths, by looking at all."""
    every = [path for length in range(1, depth + 1) for path in product(range(6), repeat=length)]
    return sorted(sorted(every, key=reach, reverse=True)[:nodes])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", TREES)
def test_what_a_device_answers_is_what_the_host_finds(name, sampling):
    choice = choose(TREES, name)
    grown = choice.member(choice.member.toy(), setup())
    for seed in range(5):
        near, far = (grow(grown, rng=CounterRng(seed), sampling=SAMPLINGS[sampling], far=far) for far in (False, True))
        assert len(near) > 0
        near.check(6, 8)
        far.check(6, 8)
        assert (near.tokens, near.parents) == (far.tokens, far.parents)
        assert near.confidence == pytest.approx(far.confidence, abs=1e-6)
        pairs = [(near.drawn_from(n), far.drawn_from(n)) for n in range(len(near))]
        assert all(a.at(np.arange(6)) == pytest.approx(b.at(np.arange(6)), abs=1e-6) for a, b in pairs)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("nodes", [1, 5, 12])
@pytest.mark.parametrize("spelled", ["eagle2:width=6", "opt-tree:gain=0", "specexec:width=6,beams=2", "dyspec:width=6"])
def test_chosen_trees_are_the_most_probable_ones(spelled, nodes, depth):
    """Each by its own search; two beams need more passes than there are levels."""
    if "beams" in spelled and depth > 1:
        spelled = "specexec:width=6,beams=16"
    assert sorted(paths(grow(spelled, nodes, depth, sampling=GREEDY))) == likeliest(nodes, depth)


def test_eagle2_goes_on_below_its_width_only():
    narrow = paths(grow("eagle2:width=2", 12, 3, sampling=GREEDY))
    assert max(Counter(map(len, narrow)).values()) <= 4
    assert max(Counter(path[:-1] for path in narrow).values()) <= 2


@pytest.mark.parametrize("spelled", ["opt-tree:gain=0", "eagle2:width=6", "specexec:width=6,beams=2"])
@pytest.mark.parametrize("bar", [0.13, 0.2, 0.99])
def test_nodes_that_do_not_reach_the_bar_are_left_out_and_no_others(spelled, bar):
    every = paths(grow(spelled, 8, 4, sampling=GREEDY))
    likely = [path for path in every if reach(path) >= bar]
    assert len(likely) < len(every)
    assert set(paths(grow(spelled, 8, 4, sampling=GREEDY, bar=bar))) == set(likely)


def test_opt_tree_ends_where_a_level_adds_too_little():
    depths = [max(grow(f"opt-tree:gain={gain}", 8, 6, sampling=GREEDY).depths) for gain in (0, 0.2, 5)]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[-1] == 1


def test_a_level_has_its_width_and_no_path_below_the_threshold():
    assert Counter(grow("level:width=3", 8, 3).depths) == {1: 3, 2: 3, 3: 2}
    assert all(reach(path) >= 0.2 for path in paths(grow("level:width=3,threshold=0.2", 8, 3)))


def test_dyspec_draws_where_judging_is_likeliest_to_get():
    """Every drawn place is worth at least as much as any that was left open."""
    for seed in range(20):
        draft = grow("dyspec:floor=0,width=6", 6, 4, CounterRng(seed))
        worth = worths(draft)
        least = min(value for value, drawn in worth.values() if drawn)
        assert all(drawn or value <= least + 1e-12 for value, drawn in worth.values())
        assert sum(drawn for _, drawn in worth.values()) == len(draft) == 6


def worths(draft):
    """(node, child number) -> worth of that place and whether it was drawn."""
    found, reached = {}, {-1: 1.0}
    for node in range(-1, len(draft)):
        value, children = reached[node], draft.children(node)
        for i, child in enumerate(children):
            found[node, i] = value, True
            chance = draft.drawn_from(child).prob(draft.tokens[child])
            reached[child], value = value * chance, value * (1 - chance)
        if node == -1 or draft.depths[node] < 4:
            found[node, len(children)] = value, False
    return found


@pytest.mark.parametrize(("width", "depth"), [(2, 2), (3, 2), (2, 3)])
def test_a_beam_is_drawn_without_replacement_from_the_sequences(width, depth):
    """The order of a level's arrivals has the law of draws without replacement, level by level."""
    model, beams = ToyModel(3, 5), tree(f"sbs:width={width}")
    found = outcomes(lambda rngs: [by_level(grow(beams, 99, depth, rng, model=model), depth) for rng in rngs])
    for level in range(1, depth + 1):
        law = Counter()
        for levels, weight in found.items():
            law[levels[level - 1]] += weight
        sequences = list(product(range(3), repeat=level))
        for order in permutations(sequences, min(width, len(sequences))):
            left, chance = 1.0, 1.0
            for path in order:
                chance, left = chance * reach(path, model) / left, left - reach(path, model)
            assert law[order] == pytest.approx(chance, abs=1e-12)
        assert sum(law.values()) == pytest.approx(1)


def by_level(draft, depth):
    found = paths(draft)
    return tuple(tuple(path for path in found if len(path) == level) for level in range(1, depth + 1))


def test_siblings_without_replacement_differ_and_report_what_was_left():
    for seed in range(10):
        draft = grow("swor:widths=[3,2]", 99, 2, CounterRng(seed))
        assert Counter(draft.depths) == {1: 3, 2: 6}
        for node in range(-1, 3):
            siblings = draft.children(node)
            tokens = [draft.tokens[child] for child in siblings]
            assert len(set(tokens)) == len(tokens)
            for i, child in enumerate(siblings):
                assert draft.drawn_from(child).at(np.array(tokens[:i], dtype=int)).sum() == 0
                assert draft.drawn_from(child).probs.sum() == pytest.approx(1)


def test_siblings_with_replacement_share_their_q_and_a_second_one_has_no_children():
    twice = 0
    for seed in range(30):
        draft = grow("iid:widths=[3,2]", 99, 2, CounterRng(seed))
        children = draft.children(-1)
        assert len(children) == 3
        assert len({id(draft.drawn_from(child)) for child in children}) == 1
        seen = set()
        for child in children:
            assert len(draft.children(child)) == (0 if draft.tokens[child] in seen else 2)
            twice += draft.tokens[child] in seen
            seen.add(draft.tokens[child])
    assert twice > 10


def test_what_cannot_be_drawn_is_left_out():
    """Two tokens are left to draw; a third sibling would have nothing to be drawn from."""
    draft = grow("swor:widths=[3,3]", 99, 2, sampling=SAMPLINGS["cut"])
    assert {len(draft.children(node)) for node in range(-1, 2)} == {2}


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("name", TREES)
def test_a_budget_is_kept(name, budget):
    for depth in (1, 2, 4):
        draft = grow(name, budget, depth, rng=CounterRng(budget))
        draft.check(6, budget)
        assert max(draft.depths) <= depth


@pytest.mark.parametrize("name", TREES)
def test_a_growth_that_is_given_up_leaves_a_draft(name):
    """After one pass or two there is no room to go on: what has grown is a draft, within the budget."""
    whole = len(grow(name, 4, 3, CounterRng(1)))
    for passes in (1, 2):
        draft = grow(name, 4, 3, CounterRng(1), passes=passes)
        draft.check(6, 4)
        assert 0 < len(draft) <= whole
        assert max(draft.depths) <= passes


RULES = {
    "threshold": ("least=0", "least=0.02", "least=1"),
    "svip": ("bound=9", "bound=1.29", "bound=0"),
    "specdec-pp": ("risk=1", "risk=0.8", "risk=0"),
    "disco": ("least=0", "least=0.56", "least=1"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_ends_a_chain_and_takes_nothing_back(name):
    """Never, at once, and in between; whatever the rule, the tokens are those of the whole chain as far as it goes."""
    never, sometimes, always = RULES[name]
    lengths = Counter()
    for seed in range(20):
        whole = grow("chain", 6, 6, CounterRng(seed))
        assert grow(f"{name}:{never}", 6, 6, CounterRng(seed)).tokens == whole.tokens
        assert len(grow(f"{name}:{always}", 6, 6, CounterRng(seed))) == 1
        between = grow(f"{name}:{sometimes}", 6, 6, CounterRng(seed))
        assert between.tokens == whole.tokens[: len(between)]
        lengths[len(between)] += 1
    assert len(lengths) > 1


ACCEPTED = ((0.6, 0.2, 0.1), (0.5, 0.25, 0.1))


@pytest.mark.parametrize("nodes", [1, 3, 6, 10])
def test_the_best_static_tree_has_the_worthiest_paths(nodes):
    def worth(path):
        return float(np.prod([ACCEPTED[min(at, 1)][rank] for at, rank in enumerate(path)]))

    every = [path for length in (1, 2, 3) for path in product(range(3), repeat=length)]
    best = best_paths(ACCEPTED, nodes, 3)
    assert sum(map(worth, best)) == pytest.approx(sum(sorted(map(worth, every), reverse=True)[:nodes]))
    assert all(path[:-1] in {(), *best} for path in best)


def test_a_static_tree_is_read_from_a_file(tmp_path):
    file = tmp_path / "paths.json"
    file.write_text(json.dumps([[0], [1], [0, 2]]))
    draft = grow(f"static:file=({file})", 8, 3)
    order = np.argsort(-MODEL.probs(PROMPT))
    first = np.argsort(-MODEL.probs((*PROMPT, order[0])))
    assert paths(draft) == [(order[0],), (order[1],), (order[0], first[2])]
    file.write_text(json.dumps([[0], [1, 2]]))
    with pytest.raises(ConfigError, match=r"path \[1, 2\] hangs under none; list every path"):
        tree(f"static:file=({file})")


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"sequoia": []}', '{"sequoia": ["a"], "static": [[0.5, "b"]]}', "[[]]", "7"]
)
@pytest.mark.parametrize("name", ["static", "sequoia", "specdec-pp", "disco"])
def test_a_file_that_holds_nothing_for_a_tree_is_refused(name, text, tmp_path):
    file = tmp_path / "trees.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"make the file with forerun bench trees --save|hangs under none"):
        tree(f"{name}:file=({file})")


def shapes(nodes, depth, ranks):
    """Every tree of at most so many nodes in which elders come first, as sets of paths."""
    found, todo = {frozenset()}, [frozenset()]
    while todo:
        shape = todo.pop()
        open_ = {(*path, 0) for path in {(), *shape} if len(path) < depth} | {(*p[:-1], p[-1] + 1) for p in shape}
        for path in open_ - shape:
            if path[-1] < ranks and len(shape) < nodes and shape | {path} not in found:
                found.add(shape | {path})
                todo.append(shape | {path})
    return found


@pytest.mark.parametrize("accepted", [(0.6, 0.2, 0.1), (0.3, 0.1, 0.5)])
@pytest.mark.parametrize(("nodes", "depth"), [(1, 1), (4, 2), (5, 3)])
def test_the_programme_finds_the_best_of_all_trees(accepted, nodes, depth):
    def worth(shape):
        return sum(float(np.prod([accepted[rank] for rank in path])) for path in shape)

    best = max(map(worth, shapes(nodes, depth, 3)))
    assert values(accepted, nodes, depth)[depth, nodes] == pytest.approx(best)
    shape = plan(accepted, nodes, depth)
    found = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), rank))
    assert worth(found) == pytest.approx(best)
    assert len(found) <= nodes
    assert max(map(len, found)) <= depth


def test_sequoia_looks_at_the_machines_costs():
    free, dear = FREE, Costs((1, 32), (1.0, 32.0))
    sizes = [len(tree("sequoia:price=0.1", costs=costs).shape(16, 6).parents) for costs in (free, dear)]
    assert sizes[0] > 8 > sizes[1]
    assert len(tree("sequoia:price=0", costs=dear).shape(16, 6).parents) == 16
    assert max(depths(tree("sequoia:price=0.5", costs=free).shape(16, 6))) < 6


def depths(shape):
    found = []
    for parent in shape.parents:
        found.append(1 + (found[parent] if parent >= 0 else 0))
    return found


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("level:width=0", "give 1 or more nodes per level"),
        ("level:threshold=1.5", "give a probability from 0 to 1"),
        ("threshold:least=-0.1", "give a probability from 0 to 1"),
        ("svip:bound=-1", "give the root of an entropy"),
        ("specdec-pp:risk=2", "give a probability from 0 to 1"),
        ("disco:least=nan", "give a probability from 0 to 1"),
        ("eagle2:width=0", "give a width of 1 or more"),
        ("opt-tree:gain=-1", "give 0 or more of both"),
        ("specexec:beams=0", "give 1 or more beams"),
        ("dyspec:floor=1.2", "a floor from 0 to 1"),
        ("static:nodes=-1", "give 0 or more"),
        ("sequoia:price=-1", "give 0 or more of both"),
        ("iid:widths=[2,0]", "give 1 or more children per level"),
        ("swor:widths=[]", "give 1 or more children per level"),
        ("sbs:width=0", "give 1 or more nodes per level"),
        ("chain:width=2", "no option 'width'"),
        ("chian", "did you mean 'chain'"),
    ],
)
def test_what_makes_no_tree_is_refused(spelled, sentence):
    with pytest.raises(ConfigError, match=sentence):
        tree(spelled)


def test_confidence_says_nothing_of_the_token():
    """The same for every token that could have been drawn; siblings' add up to at most one."""
    firsts = {grow("chain", 1, 1, CounterRng(seed)) for seed in range(40)}
    assert len({draft.tokens for draft in firsts}) > 3
    assert len({draft.confidence for draft in firsts}) == 1
    assert sum(grow("swor:widths=[6]", 6, 1).confidence) <= 1
