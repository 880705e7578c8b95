"""The cost of chances: both engines are timed on the same work, and make the same of it."""

import json

import pytest
import torch
from click.testing import CliRunner

from forerun.bench.cli import command
from forerun.bench.sampling import ENGINES, SAMPLINGS, processed, theirs
from forerun.sampling import Shaper


def test_every_sampling_has_a_case_per_size():
    result = CliRunner().invoke(command, ["sampling", "--vocabularies", "64,128", "--rows", "1,2", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout.splitlines()[-1])["cases"]
    keys = [(c["sampling"], c["rows"], c["vocabulary"]) for c in cases]
    assert sorted(keys) == sorted((name, rows, vocab) for name in SAMPLINGS for rows in (1, 2) for vocab in (64, 128))
    assert all(c[engine][clock]["median"] > 0 for c in cases for engine in ENGINES for clock in ("us", "cpu_us"))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_both_make_the_same(sampling):
    logits, text = torch.randn(2, 700, generator=torch.Generator().manual_seed(1)) * 3, [5, 6, 7, 5]
    theirs_made = processed(theirs(sampling), torch.tensor([text, text]), logits)
    ours = Shaper(sampling, text, 2).probabilities(logits, lambda _: ())
    assert torch.allclose(ours, theirs_made, atol=1e-6)
    assert not torch.allclose(ours, torch.softmax(logits, -1), atol=1e-6)
