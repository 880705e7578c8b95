"""The benchmark of schemas: what it counts, on instances whose judgement is known."""

import json

import pytest
from click.testing import CliRunner

from forerun.bench import schema
from forerun.bench.cli import command
from forerun.errors import ConfigError
from forerun.types import Constraint


def found(*rows):
    return schema.measure(iter(rows), schema.vocabulary("reference")).figures()


def test_instances_are_judged_by_the_whole_text():
    wish = Constraint("json_schema", '{"type": "integer", "maximum": 20}')
    figures = found(schema.Row(wish, [(3, True), (30, False), ("3", False), (25, True), (1, False)]))
    assert (figures["valid"], figures["over_constrained"]) == (2, 1)
    assert (figures["invalid"], figures["under_constrained"]) == (3, 1)
    assert (figures["schemas"], figures["compiled"], figures["right"]) == (1, 1, 0)


def test_what_is_refused_is_counted_by_its_cause():
    figures = found(*(schema.Row(Constraint("json_schema", text)) for text in ('{"uniqueItems": true}', '{"type": 1}')))
    assert figures["compiled"] == 0
    assert sum(figures["refusals"].values()) == 2
    assert "Unimplemented keys" in figures["refusals"]


def test_the_projects_own_schemas_are_covered_but_for_one():
    figures = found(*schema.load(schema.OWN, 50, None))
    assert figures["compiled"] == figures["right"] == figures["schemas"] - 1
    assert figures["tokens"] > 100
    assert all(value > 0 for value in figures["mask_us"])


def test_an_unknown_or_missing_set_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'grammars'"):
        list(schema.load("grammar", 1, None))
    with pytest.raises(ConfigError, match="name the folder"):
        list(schema.load("grammars", 1, tmp_path))


def test_sets_are_read_from_their_folders(tmp_path):
    (tmp_path / "grammars" / "llama.cpp").mkdir(parents=True)
    (tmp_path / "grammars" / "llama.cpp" / "json.gbnf").write_text('root ::= "a"')
    (tmp_path / "grammars" / "x.lark").write_text('start: "a"')
    (tmp_path / "grammars" / "notes.txt").write_text("not a grammar")
    assert [row.constraint.name for row in schema.load("grammars", 5, tmp_path)] == ["gbnf", "lark"]


def test_the_command_says_what_drafts_save():
    flags = ["--prompts", "3", "--threads", "1", "--planner", "fixed:nodes=4", "--max-tokens", "40"]
    result = CliRunner().invoke(command, ["schema", *flags, "--drafter", "ngram", "--profiles", "off"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output.splitlines()[-1])
    assert [(case["spaces"], case["drafter"]) for case in report["texts"]] == [
        (spaces, drafter) for spaces in ("free", "none") for drafter in ("plain", "ngram")
    ]
    assert all(case["as_plain"] == case["texts"] == 3 for case in report["texts"])
    assert all(case["valid"] == case["complete"] > 0 for case in report["texts"])
    assert report["texts"][0]["tokens_per_step"] == 1
