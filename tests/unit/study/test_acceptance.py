"""The study's own arithmetic: judging by enumeration, optima against brute force, and the report's faces."""

import json
from itertools import combinations, permutations

import numpy as np
import pytest
from click.testing import CliRunner

from forerun.errors import ConfigError
from forerun.study import acceptance, optimum
from forerun.study.cli import command
from forerun.study.judging import expected, seeded
from forerun.study.pairs import Pair, recorded, toys
from forerun.types import Dist, Draft, Sampling
from forerun.verifiers import VERIFIERS

EXACT = [name for name, rule in VERIFIERS.items() if rule.facts.exact]


def rule(name):
    return VERIFIERS[name](VERIFIERS[name].toy())


P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])


def test_expected_tokens_of_a_chain_by_hand():
    """One token, then another: accepted with min(1, p / q) each, judged one after the other."""
    draft = Draft.chain((1, 2), q=(Dist(Q), Dist(Q)))
    first, second = 0.3 / 0.5, 0.2 / 0.3
    target = dict.fromkeys((-1, 0, 1), Dist(P))
    assert expected(rule("rejection"), draft, target) == pytest.approx(first * (1 + second))
    assert expected(rule("match"), draft, target) == pytest.approx(0.3 * (1 + 0.2))


@pytest.mark.parametrize("name", EXACT)
def test_expectation_is_the_mean_of_single_verdicts(name):
    draft = Draft((0, 1, 2, 1), (-1, -1, 0, 0), (Dist(Q),) * 4)
    target = dict.fromkeys(range(-1, 4), Dist(P))
    runs = [seeded(rule(name), draft, target, seed) for seed in range(3000)]
    told = expected(rule(name), draft, target)
    assert abs(np.mean(runs) - told) < 4 * max(np.std(runs), 0.02) / np.sqrt(len(runs))


def chances(kind, q, count):
    """Every ordered draft of distinct tokens with its probability."""
    for tokens in permutations(range(len(q)), count):
        chance, rest = 1.0, q.copy()
        for i, token in enumerate(tokens):
            sure = kind == "greedy" and i < count - 1
            chance *= float(token == rest.argmax()) if sure else rest[token] / rest.sum()
            rest[token] = 0
        yield tokens, chance


def dual(p, sets):
    """1 - max over sets A of p(A) - P(a draft lies in A)."""
    tokens = range(len(p))
    subsets = [set(held) for size in range(len(p) + 1) for held in combinations(tokens, size)]
    return 1 - max(sum(p[x] for x in a) - sum(chance for held, chance in sets if a & set(held)) for a in subsets)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["without", "greedy"])
def test_optima_are_those_of_the_dual(kind, count):
    rng = np.random.default_rng(0)
    for _ in range(6):
        p, q = rng.dirichlet(np.ones(5), 2)
        told = acceptance.SIBLINGS[kind](p, q, count)
        assert told == pytest.approx(dual(p, list(chances(kind, q, count))), abs=1e-5)


def test_the_optimum_with_replacement_is_what_the_optimal_rule_accepts():
    rng = np.random.default_rng(1)
    for count in (1, 2, 5):
        p, q = rng.dirichlet(np.ones(50), 2)
        told = rule("optimal-multidraft").acceptance(p, q, count)
        assert optimum.with_replacement(p, q, count) == pytest.approx(told, abs=1e-9)


@pytest.mark.parametrize("shape", acceptance.SHAPES)
def test_drafts_have_their_shape_and_could_have_been_drawn(shape):
    pair = toys("dirichlet", 20, 1)[0]
    draft = acceptance.drawn(shape, pair, 3, seed=5)
    draft.check(20, 9)
    widths = [len(draft.children(node)) for node in range(-1, len(draft))]
    wanted = {"chain": [1, 1, 1, 0], "tree": [3, 2, 2, 2, *[0] * 6]}
    assert widths == wanted.get(shape, [3, 0, 0, 0])
    if shape in {"without", "greedy"}:
        assert len(set(draft.tokens)) == 3


def test_no_rule_is_above_the_optimum_and_formulas_are_no_estimates():
    rules = {name: rule(name) for name in EXACT}
    pairs = toys("zipf", 64, 3)
    for shape in acceptance.SIBLINGS:
        cases = list(acceptance.evaluate(shape, 2, pairs, rules, 20))
        top = next(c for c in cases if c["rule"] == acceptance.OPTIMUM)
        assert top["how"] == "exact"
        for case in cases:
            assert case["accepted"] <= top["accepted"] + 2 * case["error"] + 1e-6
            assert (case["how"] == "exact") == (shape == "iid" or case["rule"] == acceptance.OPTIMUM)


def test_one_pair_of_equal_laws_accepts_everything():
    same = Pair(lambda _: P, lambda _: P)
    cases = list(acceptance.evaluate("chain", 3, [same], {"block": rule("block")}, 4))
    assert [c["accepted"] for c in cases] == pytest.approx([3, 3])


def test_orders_are_of_pairs(monkeypatch):
    cases = [
        {"rule": "block", "shape": "chain", "drafts": 2, "pairs": [0.5, 0.9]},
        {"rule": "rejection", "shape": "chain", "drafts": 2, "pairs": [0.4, 0.8]},
    ]
    monkeypatch.setattr(acceptance, "ORDERS", ((("block", "chain"), ("rejection", "chain")),))
    said = "block on chain over rejection on chain: +0.100 (+0.100 to +0.100) with 2."
    assert list(acceptance.leads(cases)) == [said]
    assert acceptance.lead(np.array([0.3, -0.1])) == "+0.100 (-0.100 to +0.300)"


def test_one_draft_has_a_formula_however_it_is_drawn():
    pairs, rules = toys("zipf", 32, 2), {name: rule(name) for name in EXACT}
    lone = [list(acceptance.evaluate(shape, 1, pairs, rules, 2)) for shape in (*acceptance.SIBLINGS, "chain")]
    for cases in lone:
        told = {c["rule"]: c["accepted"] for c in cases if c["how"] == "exact"}
        assert told.keys() >= rules.keys()
        assert [told[name] for name in rules] == [c["accepted"] for c in lone[0][: len(rules)]]


def test_command_line_prints_a_table_and_json_and_writes_files(tmp_path):
    flags = ["--vocabulary", "32", "--pairs", "2", "--draws", "2", "--drafts", "1,2", "--out", str(tmp_path)]
    result = CliRunner().invoke(command, ["acceptance", *flags])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    rules = {case["rule"] for case in found["cases"]}
    assert rules == {*EXACT, acceptance.OPTIMUM}
    assert json.loads((tmp_path / "acceptance.json").read_text()) == found
    assert (tmp_path / "acceptance.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_without_a_drafter_is_refused():
    with pytest.raises(ConfigError, match="names no drafter"):
        recorded("toy:0", Sampling(), 2)


def test_pairs_of_a_model_are_its_own_laws():
    pairs = recorded("reference", Sampling(), 3)
    assert len(pairs) == 3
    for pair in pairs:
        p, q = pair.p(()), pair.q(())
        assert len(p) == len(q) == 4096
        assert p.sum() == pytest.approx(1, abs=1e-5)
        assert abs(p - q).sum() > 0.01
        assert abs(pair.p((5,)) - p).sum() > 0.01
