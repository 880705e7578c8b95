"""The benchmark of schemas: what it counts, on instances whose judgement is known."""

import base64
import gzip
import json

import pytest
from click.testing import CliRunner

from forerun.bench import covered, masks
from forerun.bench.cli import command
from forerun.errors import ConfigError
from forerun.types import Constraint


def found(*rows):
    return covered.measure(iter(rows), masks.vocabulary("reference")).figures()


def test_instances_are_judged_by_the_whole_text():
    schema = {"type": "integer", "maximum": 20}
    wish = Constraint("json_schema", json.dumps(schema))
    figures = found(covered.Row(wish, [(3, True), (30, False), ("3", False), (25, True), (1, False)], schema))
    assert (figures["valid"], figures["over_constrained"]) == (2, 1)
    assert (figures["invalid"], figures["under_constrained"]) == (3, 1)
    assert (figures["schemas"], figures["compiled"], figures["llguidance"], figures["right"]) == (1, 1, 1, 0)
    assert figures["causes"] == {"other": 2}


def test_wrong_judgements_have_causes():
    names = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a", "b"]}
    mail = {"format": "email"}
    tests = [({"b": [{"a": 2.0}], "a": 1.0}, True), ({"a": 1, "b": 2}, True)]
    figures = found(
        covered.Row(Constraint("json_schema", json.dumps(names)), tests, names),
        covered.Row(Constraint("json_schema", json.dumps(mail)), [("no mail", True), ("a@b.org", True)], mail),
    )
    assert figures["causes"] == {"form": 1, "format": 1}
    assert (figures["over_constrained"], figures["right"]) == (2, 0)


def test_what_is_refused_is_counted_by_its_cause():
    figures = found(
        *(covered.Row(Constraint("json_schema", text)) for text in ('{"uniqueItems": true}', '{"type": 1}'))
    )
    assert figures["compiled"] == 0
    assert sum(figures["refusals"].values()) == 2
    assert "Unimplemented keys" in figures["refusals"]


def test_the_projects_own_schemas_are_covered_but_for_one():
    figures = found(*covered.load(covered.OWN, 50, None))
    assert figures["compiled"] == figures["right"] == figures["schemas"] - 1
    assert figures["tokens"] > 100
    assert all(value > 0 for value in figures["mask_us"])


def test_an_unknown_or_missing_set_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'grammars'"):
        list(covered.load("grammar", 1, None))
    with pytest.raises(ConfigError, match="name the folder"):
        list(covered.load("grammars", 1, tmp_path))


def test_sets_are_read_from_their_folders(tmp_path):
    (tmp_path / "grammars" / "llama.cpp").mkdir(parents=True)
    (tmp_path / "grammars" / "llama.cpp" / "json.gbnf").write_text('root ::= "a"')
    (tmp_path / "grammars" / "x.lark").write_text('start: "a"')
    (tmp_path / "grammars" / "notes.txt").write_text("not a grammar")
    assert [row.constraint.name for row in covered.load("grammars", 5, tmp_path)] == ["gbnf", "lark"]
    assert [name for name, _ in covered.parts("grammars", 5, tmp_path)] == ["grammars llama.cpp", "grammars x.lark"]


def test_a_schema_of_an_early_draft_is_read_as_one(tmp_path):
    folders = [tmp_path / "json_schema_test_suite" / "tests" / draft for draft in ("draft2020-12", "draft7")]
    ref = {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}}
    for folder in folders:
        folder.mkdir(parents=True)
        rows = [{"schema": ref, "tests": [{"data": "long", "valid": folder.name == "draft7"}]}]
        (folder / "type.json").write_text(json.dumps(rows))
    figures = found(*covered.load("json_schema_test_suite", 5, tmp_path))
    assert (figures["schemas"], figures["right"]) == (2, 2)


def test_masks_are_timed_over_a_file_of_ranks(tmp_path):
    path = tmp_path / "bytes.tiktoken.gz"
    pieces = [*(bytes([byte]) for byte in range(256)), b'{"', b"ab"]
    lines = [base64.b64encode(piece) + b" %d" % rank for rank, piece in enumerate(pieces)]
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    setup = masks.vocabulary(str(path))
    spelling = setup.open_spelling("")
    assert spelling.encode(b'{"ab"}') == [256, 257, ord('"'), ord("}")]
    assert spelling.spell([256, 257]) == [b'{"ab']
    figures = masks.measure(setup, covered.load(covered.OWN, 2, None)).figures()
    assert figures["one"]["looks"] > 20
    assert 0 < figures["one"]["us"][0] < figures["draft"]["us"][0]
    with pytest.raises(ConfigError, match="is not there"):
        masks.vocabulary(str(tmp_path / "none.tiktoken.gz"))


def test_the_command_says_what_drafts_save():
    flags = ["--prompts", "3", "--threads", "1", "--planner", "fixed:nodes=4", "--max-tokens", "40"]
    result = CliRunner().invoke(
        command, ["schema", *flags, "--drafter", "ngram", "--profiles", "off", "--repeats", "1"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.output.splitlines()[-1])
    assert [(case["spaces"], case["drafter"]) for case in report["texts"]] == [
        (spaces, drafter) for spaces in ("free", "none") for drafter in ("plain", "ngram")
    ]
    assert all(case["as_plain"] == case["texts"] == 3 for case in report["texts"])
    assert all(case["valid"] == case["complete"] > 0 for case in report["texts"])
    assert report["texts"][0]["tokens_per_step"] == 1
    assert report["sampled"]["valid"] == report["sampled"]["complete"] > 0
