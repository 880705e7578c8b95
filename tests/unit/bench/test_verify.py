"""The cost of verdicts: every rule of the table is timed on the same drafts."""

import json

import numpy as np
from click.testing import CliRunner

from forerun.bench.cli import command
from forerun.bench.verify import SHAPES, case, made_up
from forerun.verifiers import VERIFIERS

EXACT = [name for name, rule in VERIFIERS.items() if rule.facts.exact]


def test_every_rule_has_a_row_per_shape_and_vocabulary():
    result = CliRunner().invoke(command, ["verify", "--vocabularies", "64,128", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout.splitlines()[-1])["cases"]
    keys = {(c["rule"], c["shape"], c["vocabulary"]) for c in cases}
    assert keys == {(rule, shape, vocab) for rule in EXACT for shape in SHAPES for vocab in (64, 128)}
    assert all(c["us"]["median"] > 0 for c in cases)


def test_drafts_have_sixteen_nodes_that_could_have_been_drawn():
    pairs = [made_up(50, np.random.default_rng(i)) for i in range(3)]
    for shape in SHAPES:
        one = case(shape, pairs, 3)
        one.draft.check(50, 16)
        assert len(one.draft) == 16
        assert all((p.only is not None) == (shape == "greedy") for p in map(one.target.__getitem__, range(-1, 16)))
