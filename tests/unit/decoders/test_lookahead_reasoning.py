"""Whole steps stay where they are good, and nothing else changes."""

from itertools import accumulate
from math import log

import numpy as np
import pytest

from forerun.build import setup_for
from forerun.config import Config
from forerun.decoders.lookahead_reasoning import StepVerifier, ends_of, likeness
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.toy import ToyModel
from forerun.sampling import path_to
from forerun.testing import BushyDrafter, Told, Toy, laws, outcomes
from forerun.testing.checks import TREE
from forerun.types import Dist, Draft, Sampling
from forerun.verifiers import VERIFIERS

A, B, C = range(3)
MODEL = ToyModel(3, 0)
PROMPT = (0, 1)
CHAIN = Draft.chain((A, B, C, B, A))  # two steps, and what is none yet


def told(draft):
    return Told(lambda node: Dist(MODEL.probs((*PROMPT, *path_to(draft, node)))), PROMPT)


def steps(judge, threshold=0.5, inner="match", ends=(B,)):
    rule = VERIFIERS[inner]
    return StepVerifier(rule(rule.toy()), judge, threshold, frozenset(ends))


def law(verifier, draft, target=None):
    target = target or told(draft)

    def run(rngs):
        return [(v.path, v.token) for v in verifier.verify([draft] * len(rngs), [target] * len(rngs), rngs)]

    return outcomes(run, 8)


@pytest.mark.parametrize("good", [0, 1, 2])
def test_the_law_is_the_longer_of_good_steps_and_the_verifiers_path(good):
    """Of `match` on chosen tokens it is known: the path ends where the target draws something else."""
    found = law(steps(lambda text, *_: len(text) < len(PROMPT) + 2 * good), CHAIN)
    p = [MODEL.probs((*PROMPT, *CHAIN.tokens[:i])) for i in range(6)]
    hits = [*accumulate((p[i][CHAIN.tokens[i]] for i in range(5)), lambda x, y: x * y, initial=1.0)]
    wanted = {}
    for length, token in ((length, token) for length in range(6) for token in range(3)):
        missed = hits[length] * p[length][token] * (length == 5 or token != CHAIN.tokens[length])
        if length >= 2 * good:
            wanted[tuple(range(length)), token] = wanted.get((tuple(range(length)), token), 0) + missed
    kept = tuple(range(2 * good))
    for token in range(3):
        wanted[kept, token] = wanted.get((kept, token), 0) + (1 - hits[2 * good]) * p[2 * good][token]
    assert {k: v for k, v in wanted.items() if v > 0} == pytest.approx(found)


def test_a_judge_sees_the_text_before_a_step_the_step_and_its_shares():
    seen = []
    law(steps(lambda *given: seen.append(given) or 1.0), CHAIN)
    p = [MODEL.probs((*PROMPT, *CHAIN.tokens[:i])) for i in range(4)]
    shares = [p[i][CHAIN.tokens[i]] / p[i].max() for i in range(4)]
    assert [(tuple(text), step) for text, step, _ in seen[:2]] == [((0, 1), (A, B)), ((0, 1, A, B), (C, B))]
    assert [*seen[0][2], *seen[1][2]] == pytest.approx(shares)
    assert likeness((), (), tuple(shares)) == pytest.approx(np.exp(np.mean([log(share) for share in shares])))


def test_a_step_behind_a_bad_one_is_not_asked_for():
    asked = []
    law(steps(lambda _, step, __: asked.append(step) or 0.0), CHAIN)
    assert set(asked) == {(A, B)}


def test_the_longest_branch_of_good_steps_wins():
    tree = Draft((A, B, B, C, B), (-1, 0, -1, 2, 3))  # (a b), and (b)(c b)
    assert {path for path, _ in law(steps(lambda *_: 1.0), tree)} == {(2, 3, 4)}
    assert {path for path, _ in law(steps(lambda _, step, __: step != (C, B)), tree)} >= {(0, 1)}


def test_what_is_forbidden_is_in_no_step():
    target = Told(lambda _: Dist(np.array([0.0, 0.5, 0.5])), PROMPT)
    assert {path for path, _ in law(steps(lambda *_: 1.0), CHAIN, target)} == {()}


@pytest.mark.parametrize("drafter", ["none", TREE, BushyDrafter], ids=["none", "tree", "bushy"])
def test_where_no_step_is_good_the_law_is_the_targets(drafter):
    toy = Toy(drafter=drafter, decoder="lookahead-reasoning:threshold=1.5,ends=[b]")
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(toy, sampling)
    laws.greedy_equals_greedy(toy)


def test_a_step_ends_with_a_line_or_a_sentence():
    words = ToyModel(words=("a", ".", "!? ", "x\ny", ".b", " ."))
    spelling = setup_for(Config(), words).open_spelling("")
    assert ends_of(spelling, (".", "?")) == {1, 2, 3, 5}
    assert ends_of(spelling, ()) == {3}


@pytest.mark.parametrize(
    ("decoder", "sentence"),
    [
        ("lookahead-reasoning:threshold=nan", "give a number"),
        ("lookahead-reasoning:judge=json:nothing", "cannot be imported"),
        ("lookahead-reasoning:judge=json:decoder", "is no function"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(decoder, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Toy(decoder=decoder).build()


def test_on_the_bundled_pair_steps_save_passes():
    drafter = "draft-model:tree=chain,depth=16"
    kept = {"drafter": drafter, "planner": "fixed:nodes=16", "threads": 1, "context_length": 160}
    exact = LLM(**kept)
    loose = LLM(exact.model, exact.tokenizer, decoder="lookahead-reasoning:threshold=0.3", **kept)
    prompt, sampling = "Once upon a time", Sampling(temperature=0, max_tokens=60)
    one, other = (llm.generate([prompt], sampling)[0] for llm in (exact, loose))
    assert other.stats.steps < one.stats.steps
    assert "whole steps" in other.caveat
