"""Orders between the rules, the optimum, and what the rules do off their own ground: by exact computation.

Pairs are random and the same every time; nothing is sampled.
"""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose
from forerun.testing import outcomes
from forerun.types import Dist, Draft
from forerun.verifiers import VERIFIERS
from forerun.verifiers.contract import Verifier
from forerun.verifiers.optimal_multidraft import APART, Block

EXACT = [name for name, rule in VERIFIERS.items() if rule.facts.exact]


def rule(name):
    member = VERIFIERS[name]
    return member(member.Options())


def pairs(number, vocab, seed=0):
    """Pairs of laws: unlike ones, alike ones, and some with tokens that only one of them has."""
    rng = np.random.default_rng((seed, vocab))
    for i in range(number):
        p, q = rng.dirichlet(np.full(vocab, 0.7), 2)
        if i % 4 == 1:
            q = 0.6 * p + 0.4 * q
        if i % 4 == 2:
            p[0], q[-1] = 0, 0
        yield p / p.sum(), q / q.sum()


class Drawn:
    """A group of siblings at the root; its law of (token, accepted) under a rule."""

    def __init__(self, kind, q, count):
        self.kind, self.q, self.count = kind, q, count

    def draft(self, rng):
        shared, rest, tokens, dists = Dist(self.q), self.q.copy(), [], []
        for i in range(self.count):
            chosen = self.kind == "greedy" and i < self.count - 1
            dist = None if chosen else shared if self.kind == "iid" else Dist(rest / rest.sum())
            token = int(rest.argmax()) if chosen else rng.categorical(dist, Purpose.DRAFT, 0, i)
            rest[token] = 0
            tokens.append(token)
            dists.append(dist)
        return Draft(tuple(tokens), (-1,) * self.count, tuple(dists))

    def outcomes(self, verifier, p):
        after = dict.fromkeys(range(self.count), Dist.point(0))

        def run(rngs):
            drafts = [self.draft(rng) for rng in rngs]
            verdicts = verifier.verify(drafts, [{-1: Dist(p), **after}] * len(rngs), rngs)
            return [
                (draft.tokens[v.path[0]] if v.path else v.token, bool(v.path))
                for draft, v in zip(drafts, verdicts, strict=True)
            ]

        return outcomes(run)

    def acceptance(self, verifier, p):
        return sum(weight for (_, yes), weight in self.outcomes(verifier, p).items() if yes)

    def error(self, verifier, p):
        law = np.zeros(len(p))
        for (token, _), weight in self.outcomes(verifier, p).items():
            law[token] += weight
        return abs(law - p).max()


SIZES = [(3, 2), (3, 3), (4, 2), (5, 2)]  # vocabulary, drafts
CLOSE = 1e-9
P = np.array([0.5, 0.25, 0.25])


def best(p, sets):
    """The linear programme: how much of p can be carried by sets of drafts of these probabilities."""
    routes = [(number, token) for number, held in enumerate(sets) for token in held]
    limits = [*sets.values(), *p]
    rows = np.zeros((len(limits), len(routes)))
    for column, (number, token) in enumerate(routes):
        rows[number, column] = rows[len(sets) + token, column] = 1
    return -linprog(-np.ones(len(routes)), rows, limits).fun


def sets_of(kind, q, count):
    """Every set of drafts, with its probability."""
    found = {}
    for tokens in product(range(len(q)), repeat=count):
        chance, rest = 1.0, q.copy()
        for i, token in enumerate(tokens):
            if kind == "greedy" and i < count - 1:
                chance *= token == rest.argmax()
            else:
                chance *= rest[token] / rest.sum()
            if kind != "iid":
                rest[token] = 0
        if chance > 0:
            held = frozenset(tokens)
            found[held] = found.get(held, 0) + chance
    return found


@pytest.mark.parametrize(("vocab", "count"), SIZES)
@pytest.mark.parametrize("kind", ["iid", "greedy"])
def test_optimal_reaches_the_linear_programme(kind, vocab, count):
    for p, q in pairs(8, vocab):
        if kind == "iid" or (q > 0).sum() >= count:
            found = Drawn(kind, q, count).acceptance(rule("optimal-multidraft"), p)
            assert found == pytest.approx(best(p, sets_of(kind, q, count)), abs=1e-7)


@pytest.mark.parametrize(("vocab", "count"), SIZES)
@pytest.mark.parametrize("kind", ["iid", "without", "greedy"])
def test_no_rule_beats_the_linear_programme_or_misses_the_law(kind, vocab, count):
    for p, q in pairs(4, vocab, seed=1):
        if (q > 0).sum() < count:
            continue
        drawn, most = Drawn(kind, q, count), best(p, sets_of(kind, q, count))
        for name in EXACT:
            assert drawn.acceptance(rule(name), p) <= most + 1e-7
            assert drawn.error(rule(name), p) < CLOSE


@pytest.mark.parametrize(("vocab", "count"), [*SIZES, (64, 2), (64, 4), (512, 8)])
def test_each_rule_accepts_at_least_as_much_as_the_one_before(vocab, count):
    for p, q in pairs(40, vocab, seed=2):
        naive = float((p * (1 - (1 - q) ** count)).sum())
        told = [rule(name).acceptance(p, q, count) for name in ("spectr", "canonical-multidraft", "optimal-multidraft")]
        assert naive <= told[0] + CLOSE
        assert told[0] <= told[1] + CLOSE
        assert told[1] <= told[2] + CLOSE
        assert rule("rejection").acceptance(p, q, count) <= told[2] + CLOSE


def test_a_coupled_rule_accepts_as_often_as_two_races_have_one_winner():
    for p, q in [*pairs(4, 6), (P, P)]:
        with np.errstate(divide="ignore", invalid="ignore"):
            wins = [1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(len(p)) if p[x] > 0 and q[x] > 0]
        for count in (1, 3):
            assert rule("match").acceptance(p, q, count) == pytest.approx(sum(wins), abs=CLOSE)


@pytest.mark.parametrize("name", [name for name in EXACT if not VERIFIERS[name].facts.coupled])
def test_acceptance_is_told_truly(name):
    for p, q in [*pairs(4, 4), (P, P)]:
        told = rule(name).acceptance(p, q, 2)
        assert Drawn("iid", q, 2).acceptance(rule(name), p) == pytest.approx(told, abs=CLOSE)


def test_a_rule_without_a_formula_tells_nothing():
    assert Verifier.acceptance(rule("block"), P, P, 2) is None


@pytest.mark.parametrize(("vocab", "count"), SIZES)
def test_drawing_without_replacement_accepts_at_least_as_much_as_with(vocab, count):
    verifier = rule("rejection")
    for p, q in pairs(12, vocab, seed=3):
        if (q > 0).sum() >= count:
            without, with_ = (Drawn(kind, q, count).acceptance(verifier, p) for kind in ("without", "iid"))
            assert with_ <= without + CLOSE


def tokens_accepted(verifier, target, drafter, depth):
    """Expected number of accepted tokens of a chain drawn from the drafter."""

    def run(rngs):
        found = []
        for rng in rngs:
            text, dists = [0], []
            for place in range(depth):
                dists.append(Dist(drafter.probs(text)))
                text.append(rng.categorical(dists[-1], Purpose.DRAFT, place))
            draft = Draft.chain(text[1:], q=tuple(dists))
            p = {node: Dist(target.probs(text[: node + 2])) for node in range(-1, depth)}
            found.append(len(verifier.verify([draft], [p], [rng])[0].path))
        return found

    return sum(count * weight for count, weight in outcomes(run).items())


def test_a_block_accepts_at_least_as_much_as_token_by_token():
    gains = []
    for seed in range(6):
        models = ToyModel(3, seed), ToyModel(3, 100 + seed)
        one, whole, leaves = (tokens_accepted(rule(name), *models, 3) for name in ("rejection", "block", "traversal"))
        assert whole == pytest.approx(leaves, abs=CLOSE)
        gains.append(whole - one)
    assert min(gains) >= -CLOSE
    assert max(gains) > 0.01


def test_a_block_is_the_best_that_a_chain_allows():
    """Chance that a chain can be accepted as a whole: the sum over texts of min(p, q)."""
    for seed in range(4):
        target, drafter = ToyModel(3, seed), ToyModel(3, 100 + seed)
        most = 0.0
        for length in (1, 2, 3):
            for text in product(range(3), repeat=length):
                steps = [((0, *text[:i]), text[i]) for i in range(length)]
                most += min(np.prod([m.probs(before)[token] for before, token in steps]) for m in (target, drafter))
        assert tokens_accepted(rule("block"), target, drafter, 3) <= most + CLOSE


@pytest.mark.parametrize("count", [2, 3])
def test_blocks_that_places_do_not_fill_are_split(count, monkeypatch):
    """The second way to draw from the optimal choice, by itself: the first one may not take a step."""
    monkeypatch.setattr("forerun.verifiers.optimal_multidraft._NEWTON", 0)
    for p, q in pairs(8, 5, seed=4):
        drawn = Drawn("iid", q, count)
        assert drawn.error(rule("optimal-multidraft"), p) < CLOSE
        told = rule("optimal-multidraft").acceptance(p, q, count)
        assert drawn.acceptance(rule("optimal-multidraft"), p) == pytest.approx(told, abs=CLOSE)


def test_both_ways_to_draw_are_met():
    met = set()
    verifier = rule("optimal-multidraft")
    right = Block.ahead
    try:
        Block.ahead = lambda block, count: (found := right(block, count), met.add(found is None))[0]
        for p, q in pairs(40, 9, seed=5):
            Drawn("iid", q, 2).acceptance(verifier, p)
    finally:
        Block.ahead = right
    assert met == {True, False}


@pytest.mark.parametrize("count", [2, 4])
def test_a_large_vocabulary_costs_a_thousandth_of_acceptance_at_most(count):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=2 * APART) * 3
    p, q = (np.exp(row) / np.exp(row).sum() for row in (logits, logits + rng.normal(size=2 * APART)))
    order = np.argsort(-p / q)
    reach = np.cumsum(q[order])
    most = 1 - max(0, (np.cumsum(p[order]) - 1 + (1 - reach) ** count).max())
    told = rule("optimal-multidraft").acceptance(p, q, count)
    assert most - 1e-3 < told <= most + CLOSE


@pytest.mark.parametrize("name", ["spectr", "canonical-multidraft", "optimal-multidraft"])
def test_drafts_of_a_real_vocabulary_are_accepted_as_often_as_told(name):
    """float32 rows of a vocabulary whose tokens are put together; as often as the formula says, but for chance."""
    rng, vocab, count = np.random.default_rng(1), 2 * APART, 3
    logits = rng.normal(size=vocab) * 3
    p, q = (np.exp(row) / np.exp(row).sum() for row in (logits, logits + rng.normal(size=vocab)))
    p, q, verifier = Dist(p.astype(np.float32)), Dist(q.astype(np.float32)), rule(name)
    accepted, runs, after = 0, 3000, dict.fromkeys(range(count), Dist.point(0))
    for seed in range(runs):
        drawn = CounterRng(seed)
        tokens = tuple(drawn.categorical(q, Purpose.DRAFT, 0, i) for i in range(count))
        draft = Draft(tokens, (-1,) * count, (q,) * count)
        accepted += bool(verifier.verify([draft], [{-1: p, **after}], [drawn])[0].path)
    told = verifier.acceptance(p.probs, q.probs, count)
    assert abs(accepted / runs - told) < 4 * np.sqrt(told * (1 - told) / runs)


@pytest.mark.parametrize("name", ["spectr", "canonical-multidraft", "optimal-multidraft"])
@pytest.mark.parametrize("kind", ["sparse q", "point p", "sparse p", "equal", "apart"])
def test_off_its_own_ground_a_rule_is_exact(name, kind):
    q = Dist(np.array([0.25, 0.75]), np.array([0, 2])) if kind == "sparse q" else Dist(np.array([0.5, 0.25, 0.25, 0.0]))
    p = {
        "point p": Dist.point(1),
        "sparse p": Dist(np.array([0.3, 0.7]), np.array([1, 3])),
        "equal": q,
        "apart": Dist(np.array([0.0, 0.0, 0.0, 1.0])),
    }.get(kind, Dist(np.array([0.1, 0.2, 0.3, 0.4])))

    def run(rngs):
        found = []
        for rng in rngs:
            tokens = tuple(rng.categorical(q, Purpose.DRAFT, 0, i) for i in range(2))
            draft = Draft(tokens, (-1, -1), (q, q))
            verdict = rule(name).verify([draft], [{-1: p, 0: Dist.point(0), 1: Dist.point(0)}], [rng])[0]
            found.append(draft.tokens[verdict.path[0]] if verdict.path else verdict.token)
        return found

    law = outcomes(run)
    assert sum(law.values()) == pytest.approx(1)
    for token in range(4):
        assert law.get(token, 0) == pytest.approx(p.prob(token), abs=CLOSE)


@pytest.mark.parametrize("name", EXACT)
def test_greedy_requests_need_no_number_and_no_row(name):
    """p is a point at every node: the path is the target's own, in a tree and in a chain."""
    said = {-1: 1, 0: 2, 1: 0, 2: 3, 3: 1}
    p = {node: Dist.point(token) for node, token in said.items()}
    q = Dist(np.array([0.25, 0.25, 0.25, 0.25]))
    tree = Draft((0, 1, 0, 2), (-1, -1, 1, 1), (q, q, q, q))
    assert rule(name).verify([tree], [p], [Mute()])[0].path == (1, 2)
    chain = Draft.chain((1, 0, 3), q=(q, q, q))
    verdict = rule(name).verify([chain], [{-1: p[-1], 0: Dist.point(0), 1: Dist.point(2), 2: p[2]}], [Mute()])[0]
    assert verdict == type(verdict)((0, 1), 2)


class Mute(CounterRng):
    """Has no numbers to give."""

    def __init__(self):
        super().__init__(0)

    def uniform(self, *_):
        raise AssertionError("a number is drawn")
