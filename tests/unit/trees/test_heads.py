"""Networks that end chains: they are used, read the states that their drafter made, and keep the target's law."""

from dataclasses import replace

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.heads import Network, network
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy, laws
from forerun.types import Sampling

SMALL, DEPTH = ToyModel(3, 100), 4
DRAFTERS = ["draft-model:model=toy:100", "staged:model=toy:100,by=(ngram:width=2,min_match=1,max_match=2)"]
READS = {"specdec-pp": 7, "disco": 6}  # the toy's hidden states; probabilities, entropy and place
NEVER = {"specdec-pp": "risk=1", "disco": "least=0"}


def toy(tree, drafter=DRAFTERS[0], depth=DEPTH, **sizes):
    made = Toy(drafter=f"{drafter},depth={depth},tree=({tree})", planner=f"fixed:nodes={2 * depth}")
    return made.resized(**sizes)


def said(purpose, odds, path, reads=None):
    """A head that says the same of everything."""
    reads = reads or READS[purpose]
    head = Network(purpose, -1, [(np.zeros((2, reads)), np.zeros(2)), (np.zeros((1, 2)), np.array([float(odds)]))])
    path.write_bytes(head.content)
    return path


def drafted(made, sampling=None):
    """What is drafted while a text is written, and the tree that did it."""
    rig, drafts = made.build(), []
    inner = rig.engine.members.drafter.inner
    propose = inner.propose
    inner.propose = lambda *given: drafts.extend(found := propose(*given)) or found
    rig.write([Ask((0, 1, 2), sampling or Sampling(max_tokens=20, seed=1))])
    laws.is_sound(rig)
    return [draft for draft in drafts if len(draft)]


@pytest.mark.parametrize("passes", ["ragged", "padded"])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("tree", READS)
def test_a_head_decides_whatever_the_traits_say(tree, drafter, passes, tmp_path):
    stop, go_on = (said(tree, odds, tmp_path / f"{odds}") for odds in (-9, 9))
    always = drafted(toy(f"{tree}:head={stop}", drafter, passes=passes))
    never = drafted(toy(f"{tree}:head={go_on}", drafter, passes=passes))
    assert {len(draft) for draft in always} == {1}
    assert max(len(draft) for draft in never) == DEPTH


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=12, seed=3), Sampling(temperature=0, max_tokens=12)])
@pytest.mark.parametrize("passes", ["ragged", "padded"])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("around", ["{}", "multi-candidate-improved:candidates=1,stop=({})"])
def test_the_states_are_those_that_the_tokens_were_drawn_from(around, drafter, passes, sampling, monkeypatch):
    """The toy's states say which two tokens a row has seen: those before the drafted one, whatever that is."""
    seen = []

    def recorded(head, states):
        seen.append(states)
        return np.ones(len(states))

    monkeypatch.setattr(Network, "__call__", recorded)
    made = toy(around.format("specdec-pp:head=toy:0:7,risk=0.5"), drafter, passes=passes)
    drafts = drafted(replace(made, planner="fixed:nodes=12"), sampling)
    pairs = {tuple(map(int, np.flatnonzero(state))) for states in seen for state in states}
    assert all((np.array(states).sum(1) == 2).all() for states in seen)
    chains = [states for states in seen if len(states) > 1]
    assert chains
    for states in chains:  # each row's last token is the next row's token before the last
        last, before = states[:-1, 4:].argmax(1), states[1:, :4].argmax(1)
        assert last.tolist() == before.tolist()
    assert len(pairs) > 1
    assert max(len(draft) for draft in drafts) >= DEPTH


def test_the_first_state_is_that_of_the_newest_token(monkeypatch):
    seen = []
    monkeypatch.setattr(Network, "__call__", lambda _, states: seen.append(states) or np.zeros(len(states)))
    drafts = drafted(toy("specdec-pp:head=toy:0:7"), Sampling(max_tokens=2, temperature=0))
    assert len(drafts[0]) == 1
    assert np.flatnonzero(seen[0][0]).tolist() == [1, 4 + 2]  # the prompt ends in 1, 2


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("tree", [f"{tree}:head=toy:1:{reads}" for tree, reads in READS.items()])
def test_the_law_is_the_targets(tree, drafter):
    made = toy(tree, drafter, depth=2)
    lengths = {len(draft) for seed in range(4) for draft in drafted(made, Sampling(max_tokens=20, seed=seed))}
    assert lengths == {1, 2}  # this head stops some chains and not others
    laws.a_draft_is_a_draft(made)
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(made, sampling)
    laws.greedy_equals_greedy(made)
    laws.neighbours_do_not_matter(made)


def test_a_layer_as_wide_as_its_inputs_is_added_to_them():
    rng = np.random.default_rng(0)
    (a, b), (c, d), (e, f) = [(rng.normal(size=(o, i)), rng.normal(size=o)) for i, o in ((3, 3), (3, 5), (5, 1))]
    x = rng.normal(size=(4, 3))

    def silu(z):
        return z / (1 + np.exp(-z))

    hidden = silu((x + silu(x @ a.T + b)) @ c.T + d)
    expected = 1 / (1 + np.exp(-(hidden @ e.T + f)[:, 0]))
    assert Network("any", 0, [(a, b), (c, d), (e, f)])(x) == pytest.approx(expected)


def test_a_file_holds_all_of_it(tmp_path):
    one, file = network("toy:3:5", "disco", "x", "y"), tmp_path / "head"
    file.write_bytes(replace(one, layer=2).content)
    back = network(str(file), "disco", "x", "y")
    assert back.layer == 2
    assert back.reads == 5
    assert (back(np.ones((1, 5))) == one(np.ones((1, 5)))).all()


@pytest.mark.parametrize("tree", READS)
def test_what_is_no_head_for_it_is_refused(tree, tmp_path):
    other = next(name for name in READS if name != tree)
    broken, absent, misfit = tmp_path / "broken", tmp_path / "absent", tmp_path / "misfit"
    broken.write_bytes(b"no weights")
    shapes = [((2, READS[tree]), 2), ((1, 3), 1)]
    misfit.write_bytes(Network(tree, -1, [(np.zeros(weight), np.zeros(bias)) for weight, bias in shapes]).content)
    for file in (broken, absent, misfit, said(other, 0, tmp_path / "other"), said(tree, 0, tmp_path / "wide", 9)):
        with pytest.raises(ConfigError, match=r"train (one|a head) with `forerun train stopping`"):
            toy(f"{tree}:head={file}").build()
