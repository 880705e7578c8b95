"""The rules that are not exact: each paper's decision on hand-made distributions, and where it becomes exact."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from forerun.config import choose
from forerun.drafters.contract import SoloDrafter
from forerun.errors import ConfigError
from forerun.heads import load
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose
from forerun.testing import Ask, Reference, Toy, distance, laws, outcomes
from forerun.testing.checks import TREE
from forerun.testing.toy import BushyDrafter
from forerun.types import Dist, Draft, Facts, Sampling
from forerun.verifiers import VERIFIERS
from forerun.verifiers.reward_guided import variety

CHAIN = "draft-model:model=toy:100,depth=2"
P = np.array([0.4, 0.3, 0.2, 0.07, 0.03])
Q = np.array([0.1, 0.5, 0.1, 0.1, 0.2])
EVEN = np.full(5, 0.2)
SHARP = np.array([0.96, 0.01, 0.01, 0.01, 0.01])


class Given:
    """A target of hand-made rows, the root's first."""

    text = (1, 2, 3)

    def __init__(self, *rows, greedy=False):
        self.rows, self.greedy = [Dist(row) for row in rows], greedy

    def __getitem__(self, node):
        row = self.rows[node + 1]
        return Dist.point(int(row.probs.argmax())) if self.greedy else row

    def soft(self, node):
        return self.rows[node + 1]


def rule(spelled):
    choice = choose(VERIFIERS, spelled)
    return choice.member(choice.options)


def verdict(spelled, draft, target, seed=0):
    return rule(spelled).verify([draft], [target], [CounterRng(seed)])[0]


def accepted(spelled, row, greedy=False, q=None):
    """Tokens that are accepted alone, whatever the numbers."""
    found = set()
    for token in range(5):
        draft = Draft.chain((token,), q=None if q is None else (Dist(q),))
        runs = [verdict(spelled, draft, Given(row, EVEN, greedy=greedy), seed) for seed in range(8)]
        found |= {token} if all(run.path for run in runs) else set()
    return found


def law_of_first(spelled, p, q):
    """The exact law of the first token, with one drawn from q."""

    def run(rngs):
        found = []
        for rng in rngs:
            drawn = Dist(q)
            draft = Draft.chain((rng.categorical(drawn, Purpose.DRAFT, 0),), q=(drawn,))
            judged = rule(spelled).verify([draft], [Given(p, EVEN)], [rng])[0]
            found.append(draft.tokens[0] if judged.path else judged.token)
        return found

    table = outcomes(run)
    return np.array([table.get(token, 0.0) for token in range(len(p))])


# Typical acceptance


@pytest.mark.parametrize("row", [P, EVEN, SHARP])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.25, 0.9), (0.3, 0.5), (0.0, 0.3)])
def test_typical_asks_for_less_where_the_entropy_is_high(row, epsilon, delta):
    entropy = -sum(x * math.log(x) for x in row)
    least = min(epsilon, delta * math.exp(-entropy))
    wanted = {token for token in range(5) if row[token] > least}
    assert accepted(f"typical:epsilon={epsilon},delta={delta}", row) == wanted


def test_typical_takes_the_longest_branch_and_the_likelier_of_two():
    #                root: 0, 1, 4; below 1: 2, 0
    draft = Draft((0, 1, 4, 2, 0), (-1, -1, -1, 1, 1))
    rows = [P] * 6
    assert verdict("typical", draft, Given(*rows)).path == (1, 4)
    rows[2] = np.array([0.0, 0.5, 0.0, 0.5, 0.0])  # after node 1 neither of its children
    assert verdict("typical", draft, Given(*rows)).path == (0,)
    assert verdict("typical:epsilon=1,delta=9", draft, Given(*rows)).path == ()


def test_typical_draws_the_next_token_from_the_last_row():
    draft = Draft.chain((0, 1))
    rows = [P, P, np.array([0, 0, 0, 1.0, 0])]
    assert verdict("typical", draft, Given(*rows)).token == 3


# Big Little Decoder


@pytest.mark.parametrize("greedy", [True, False])
def test_bild_rolls_back_by_distance(greedy):
    wanted = {token for token in range(5) if -math.log(P[token]) <= 2.0}
    assert wanted == {0, 1, 2}
    assert accepted("bild:rollback=2", P, greedy=greedy) == wanted
    assert accepted("bild:rollback=0", P, greedy=greedy) == set()
    assert accepted("bild:rollback=9", P, greedy=greedy) == set(range(5))


def test_bild_falls_back_where_the_small_model_is_unsure():
    assert accepted("bild:fallback=0.5,rollback=9", P, q=Q) == set(range(5))
    assert accepted("bild:fallback=0.51,rollback=9", P, q=Q) == set()
    draft = Draft((0, 0, 0), (-1, 0, 1), confidence=(0.9, 0.7, 0.5))
    target = Given(P, P, P, P)
    assert [len(verdict(f"bild:fallback={f}", draft, target).path) for f in (0.4, 0.6, 0.8, 1.0)] == [3, 2, 1, 0]


def test_bild_returns_to_the_first_token_that_is_too_far():
    judged = verdict("bild:rollback=2", Draft.chain((0, 4, 0)), Given(P, SHARP, P, P, greedy=True))
    assert (judged.path, judged.token) == ((0,), 0)


# Relaxed acceptance


@pytest.mark.parametrize(
    ("top_k", "delta", "wanted"),
    [(2, 0.5, {0, 1}), (3, 0.11, {0, 1}), (3, 0.2, {0, 1, 2}), (5, 1.0, set(range(5))), (4, 0.0, {0}), (1, 1.0, {0})],
)
def test_relaxed_takes_what_is_among_the_best_and_near_the_best(top_k, delta, wanted):
    assert accepted(f"relaxed:top_k={top_k},delta={delta}", P, greedy=True) == wanted


def test_relaxed_never_takes_what_cannot_come():
    assert accepted("relaxed:top_k=5,delta=1", np.array([0.5, 0.5, 0, 0, 0])) == {0, 1}


def test_relaxed_prefers_what_the_target_says():
    draft = Draft((1, 0), (-1, -1))
    paths = {verdict("relaxed", draft, Given(P, EVEN, EVEN), seed).path for seed in range(40)}
    assert paths == {(0,), (1,)}
    for seed in range(40):
        rng = CounterRng(seed)
        said = rng.categorical(Dist(P), Purpose.TARGET, 0)
        node = draft.tokens.index(said) if said in draft.tokens else 0
        assert verdict("relaxed", draft, Given(P, EVEN, EVEN), seed).path == (node,)


# Lenience


@pytest.mark.parametrize("lenience", [1.0, 0.6, 0.25])
def test_lenience_has_the_law_of_its_formula_and_its_bound(lenience):
    found = law_of_first(f"lenient:lenience={lenience}", P, Q)
    kept = np.minimum(Q, P / lenience)
    rest = np.maximum(P - Q, 0)
    assert np.allclose(found, kept + (1 - kept.sum()) * rest / rest.sum(), atol=1e-12)
    assert (found <= P / lenience + 1e-12).all()
    assert np.allclose(found, P) == (lenience == 1)


def test_lenience_at_temperature_0_is_a_share_of_the_best():
    assert accepted("lenient:lenience=0.5", P, greedy=True) == {0, 1}
    assert accepted("lenient:lenience=0.4", P, greedy=True) == {0, 1, 2}
    tied = np.array([0.4, 0.4, 0.2, 0, 0])
    assert accepted("lenient:lenience=1", tied, greedy=True) == {0}, "of two best tokens the first is plain decoding's"


# Rewards


def likes_low(text, step):
    assert tuple(text) == Given.text
    return 1.0 if step[-1] < 3 else 0.2


def test_a_reward_has_the_law_of_the_mixture():
    here = f"reward-guided:reward={__name__}:likes_low"
    good = np.array([1, 1, 1, 0, 0])
    assert np.allclose(law_of_first(here, P, Q), good * Q + (Q * (1 - good)).sum() * P, atol=1e-12)
    assert np.allclose(law_of_first(f"{here},threshold=0.2", P, Q), Q, atol=1e-12)
    assert np.allclose(law_of_first(f"{here},threshold=1.1", P, Q), P, atol=1e-12)


def test_a_reward_sees_the_step_so_far():
    seen = []
    judge = rule("reward-guided")
    judge.reward = lambda _text, step: seen.append(step) or 1.0
    assert judge.verify_one(Draft.chain((4, 3)), Given(P, P, P), CounterRng(0)).path == (0, 1)
    assert seen == [(4,), (4, 3)]


def test_variety_is_the_share_that_repeats_no_trigram():
    text = (1, 2, 3, 1, 2)
    assert variety(text, (3,)) == 0
    assert variety(text, (4,)) == 1
    assert variety(text, (3, 1, 1)) == pytest.approx(1 / 3)
    assert variety((), (5, 5)) == 1
    assert variety((), (5, 5, 5, 5)) == pytest.approx(1 / 2)


# Judging by hidden states


class Seen(Given):
    """A target whose hidden states are given, the last committed token's first."""

    def __init__(self, rows, states):
        super().__init__(*rows)
        self.states = states

    def hidden(self, layer, node):
        assert layer == 4
        return np.array(self.states[node + 1])


@pytest.fixture
def head(tmp_path):
    path = tmp_path / "head.json"
    path.write_text('{"layer": 4, "bias": -1.0, "weight": [2.0, 0.5]}')
    return path


def test_a_judge_reads_the_state_of_the_token_itself(head):
    draft = Draft.chain((4, 4), q=(Dist(EVEN), Dist(EVEN)))
    never = np.array([0.25, 0.25, 0.25, 0.25, 1e-12])  # rejection sampling accepts nothing of this draft
    right, wrong = (0.5, 0.1), (0.5, -0.1)  # 2 x 0.5 + 0.5 x 0.1 - 1 is above 0, with -0.1 below
    for states, path in [((wrong, right, right), (0, 1)), ((right, right, wrong), (0,)), ((right, wrong, right), ())]:
        judged = verdict(f"judge:head={head}", draft, Seen([never] * 3, states))
        assert judged.path == path
        assert judged.token != 4
    forbidden = Seen([never * (never > 0.1)] * 3, [right] * 3)
    assert verdict(f"judge:head={head}", draft, forbidden).path == ()
    chance = 1 / (1 + math.exp(-0.05))
    for threshold, path in ((chance - 1e-6, (0, 1)), (chance + 1e-6, ())):
        assert verdict(f"judge:head={head},threshold={threshold}", draft, Seen([never] * 3, (right,) * 3)).path == path


def test_what_the_judge_refuses_is_judged_by_rejection_sampling(head):
    draft = Draft.chain((1,), q=(Dist(Q),))
    bad = Seen([P, EVEN], [(0, 0)] * 2)
    paths = [verdict(f"judge:head={head}", draft, bad, seed).path for seed in range(400)]
    assert sum(path == (0,) for path in paths) / 400 == pytest.approx(P[1] / Q[1], abs=0.08)


class TwosDrafter(SoloDrafter):
    """A chain of twos."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """No options."""

    def __init__(self, options, setup):
        self.options = options

    def propose_one(self, context, budget):
        return Draft.chain((2,) * min(budget, 2), "twos")


@pytest.mark.parametrize("passes", ["auto", "padded"])
def test_the_engine_hands_a_judge_the_states_of_its_nodes(passes, tmp_path):
    """A toy's state is one-hot of the last two tokens: a head that likes a 2 lets both pass."""
    laws_by_liked = {}
    for liked in (1, 2):
        head = tmp_path / f"{liked}.json"
        head.write_text(
            json.dumps({"layer": -1, "bias": -0.5, "weight": [0.0] * 4 + [float(liked == t) for t in range(3)]})
        )
        toy = Toy(drafter=TwosDrafter, verifier=f"judge:head={head}").resized(passes=passes)
        laws_by_liked[liked] = laws.output_law(toy, laws.SAMPLINGS["plain"])
    model = ToyModel(3, 0)
    assert distance(laws_by_liked[1], Reference(model).law(laws.PROMPT, laws.SAMPLINGS["plain"], 3)) < laws.TIGHT
    assert laws_by_liked[2] == pytest.approx({(2, 2, t): chance for t, chance in enumerate(model.probs((2, 2)))})


def test_a_head_of_another_model_is_refused(head):
    text = Toy(drafter=TwosDrafter, verifier="judge:head=toy:0:8").build().write([Ask((0, 1), Sampling(max_tokens=3))])
    assert "reads 8 numbers and the model's hidden states have 7" in text[0].error


def test_the_bundled_head_reads_the_bundled_model():
    assert len(load("reference", "judge.json", "verifier 'judge'", "forerun train judge").weight) == 320


# Limits

EXACT = [
    "typical:epsilon=1,delta=99",
    "bild:rollback=0",
    "relaxed:top_k=0",
    "lenient:lenience=1",
    "reward-guided:threshold=1.1",
    "judge:head=toy:0:7,threshold=1",
]


@pytest.mark.parametrize("spelled", EXACT)
@pytest.mark.parametrize("drafter", [CHAIN, TREE, BushyDrafter], ids=["chain", "tree", "bushy"])
def test_the_limit_is_exact(spelled, drafter):
    toy = Toy(drafter=drafter, verifier=spelled)
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(toy, sampling)
    laws.greedy_equals_greedy(toy)


def test_bild_without_the_small_model_is_exact():
    for drafter in (CHAIN, TREE):
        laws.exact_is_true(Toy(drafter=drafter, verifier="bild:fallback=1"), laws.SAMPLINGS["plain"])


@pytest.mark.parametrize("spelled", ["typical", "typical:epsilon=0,delta=0", "relaxed:delta=0"])
def test_at_temperature_0_it_is_greedy_decoding(spelled):
    laws.greedy_equals_greedy(Toy(drafter=BushyDrafter, verifier=spelled))


@pytest.mark.parametrize("spelled", ["bild", "relaxed", "lenient", "reward-guided"])
def test_at_temperature_0_it_is_not(spelled):
    for seed in range(9):
        toy = Toy(drafter=BushyDrafter, verifier=spelled, model=ToyModel(3, seed))
        for prompt in laws.PROMPTS:
            text = toy.build().write([laws.Ask(prompt, laws.GREEDY[0])])[0].tokens
            if text != Reference(toy.model).greedy(prompt, laws.GREEDY[0], 16):
                return
    pytest.fail("nothing was lost; the limit above shows nothing")


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("typical:epsilon=1.5", "probability"),
        ("typical:epsilon=nan", "probability"),
        ("typical:delta=-1", "at least 0"),
        ("bild:fallback=-0.1", "probability"),
        ("bild:rollback=-1", "nats"),
        ("relaxed:top_k=-1", "at least 0"),
        ("relaxed:delta=2", "from 0 to 1"),
        ("lenient:lenience=0", "at most 1, which is exact"),
        ("lenient:lenience=1.2", "at most 1, which is exact"),
        ("judge:threshold=-1", "probability"),
        ("judge:head=no/such/file", "forerun train judge"),
        ("judge:head=toy:0", "forerun train judge"),
        ("reward-guided:reward=no_such_module:f", "cannot be imported"),
        ("reward-guided:reward=forerun.types:nothing", "cannot be imported"),
        ("reward-guided:reward=", "cannot be imported"),
        ("reward-guided:reward=forerun.types:SCALE_BYTES", "no function"),
    ],
)
def test_what_is_out_of_range_is_refused_with_a_remedy(spelled, sentence):
    with pytest.raises(ConfigError, match=sentence):
        rule(spelled)
