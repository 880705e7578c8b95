"""The cost of stores: every drafter holds the same documents and drafts along further ones."""

import json
from itertools import islice

from click.testing import CliRunner

from forerun.bench.cli import command
from forerun.bench.stores import DOCUMENT, NODES, documents


def test_every_drafter_reads_and_drafts():
    result = CliRunner().invoke(command, ["stores", "--tokens", "4096", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    cases = json.loads(result.stdout.splitlines()[-1])["cases"]
    assert [case["drafter"] for case in cases] == ["suffix-decoding", "rest", "sam-decoding"]
    assert all(case["us_per_observed"] > 0 and case["us_per_proposed"] > 0 for case in cases)
    assert all(0.5 < case["nodes"] <= NODES for case in cases)


def test_half_of_the_documents_repeat_an_earlier_one():
    made = list(islice(documents(8), 8))
    for number, text in enumerate(made[1:], 1):
        same = max(sum(a == b for a, b in zip(text, old, strict=True)) for old in made[:number]) / DOCUMENT
        assert (same > 0.9) == bool(number % 2)
