"""`forerun tune` on a toy: table, plot, config file; and one sentence for everything that cannot be."""

import json
import sys
import tomllib
from pathlib import Path

import pytest

from forerun import LLM
from forerun.cli import main
from forerun.tune import report

FLAGS = ["--threads", "1", "--max-tokens", "6", "--repeats", "1"]
SMALL = ["--only", "--drafter", "draft-model:model=toy:0", "--drafter", "ngram:min_match=1", "--nodes", "2"]


@pytest.fixture
def tune(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forerun.tune.search.SECONDS", 0.0)
    (tmp_path / "prompts.txt").write_text("abcab\nbb\n")

    def call(*flags, model="toy:0", command="tune"):
        monkeypatch.setattr(sys, "argv", ["forerun", command, model, *flags])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


def test_it_measures_and_writes_what_generate_reads(tune):
    code, out, err = tune("--prompts", "prompts.txt", *FLAGS, *SMALL)
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert [(r["drafter"], r["planner"]) for r in found["rows"]] == [
        ("draft-model:model=toy:0", "fixed:nodes=2"),
        ("ngram:min_match=1", "fixed:nodes=2"),
    ]
    assert all(row["predicted"]["median"] > 0 and row["measured"]["runs"] == 2 for row in found["rows"])
    assert [row["drafter"] in out for row in found["rows"]] == [True, True]
    assert err.strip().splitlines() == ["wrote forerun.toml", "wrote forerun.png"]
    assert Path("forerun.png").read_bytes().startswith(b"\x89PNG")
    values = tomllib.loads(Path("forerun.toml").read_text())
    assert values == {"threads": 1, "model": "toy:0", **found["best"]}
    assert LLM(config="forerun.toml").config.drafter == found["best"]["drafter"]
    flags = ["--max-tokens", "5", "--temperature", "0"]
    tuned = tune("--config", "forerun.toml", *flags, model="ab", command="generate")
    assert tuned == tune("--model", "toy:0", *flags, model="ab", command="generate")
    assert tuned[0] == 0
    other = ["--config", "forerun.toml", "--drafter", "nobody"]
    assert "no drafter 'nobody'" in tune(*other, model="ab", command="generate")[2]


def test_the_usual_settings_that_fit_are_tried(tune):
    code, out, _ = tune("--prompts", "prompts.txt", *FLAGS, "--drafter", "ngram", "--nodes", "8", "--out", "a/b.toml")
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert [(r["drafter"], r["planner"]) for r in found["rows"]] == [
        ("ngram", "fixed:nodes=4"),
        ("ngram", "fixed:nodes=8"),
    ]
    assert Path("a/b.png").is_file()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--prompts", "none.txt"], "forerun: prompts file 'none.txt' cannot be read (No such file or directory);"),
        (["--prompts", "empty.txt"], "forerun: prompts file 'empty.txt' holds no prompt;"),
        (["--prompts", "bytes.txt"], "forerun: prompts file 'bytes.txt' is not UTF-8"),
        (["--prompts", "long.txt"], "forerun: no prompt has at most 58 tokens; lower --max-tokens,"),
        (["--prompts", "prompts.txt", "--drafter", "ngrm"], "forerun: forerun has no drafter 'ngrm'; did you mean"),
        (
            ["--prompts", "prompts.txt", "--drafter", "draft-model"],
            "forerun: drafter 'draft-model' needs another model",
        ),
        (["--prompts", "prompts.txt", "--planner", "fixd"], "no planner 'fixd'; did you mean 'fixed'"),
        (["--prompts", "prompts.txt", "--only"], "forerun: --only leaves nothing to try; name what is to be tried"),
        (["--prompts", "prompts.txt", "--nodes", "0"], "--nodes is '0'; give whole numbers of 1 or more"),
        (["--prompts", "prompts.txt", "--max-tokens", "1", *SMALL], "every text was whole after its first step"),
        (["--prompts", "prompts.txt", "--config", "none.toml"], "forerun: config file 'none.toml' cannot be read"),
        (["--prompts", "prompts.txt", "--inflate", "9Q"], "forerun: toy:0:3 cannot be enlarged"),
        (["--prompts", "prompts.txt", "--out", "prompts.txt/a", *SMALL], "forerun: cannot write 'prompts.txt/a'"),
    ],
)
def test_what_cannot_be_is_one_sentence(tune, flags, sentence):
    Path("empty.txt").write_bytes(b"\n")
    Path("bytes.txt").write_bytes(b"\xff\xfe")
    Path("long.txt").write_bytes(b"a" * 99)
    code, _, err = tune(*FLAGS, *flags)
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert sentence in last
    assert last.endswith(".")
    assert not Path("forerun.toml").exists()


def test_where_nothing_is_faster_the_file_says_plain_decoding():
    found = {
        "best": {"drafter": "none", "planner": "fixed:nodes=0"},
        "rows": [{"drafter": "ngram", "planner": "fixed"}],
        "machine": {"cpu": "A\nB", "cores": 1, "device": "cpu", "forerun": "0"},
        "settings": {"prompts": 1},
        "command": "forerun tune 'a\nb'",
        "date": "today",
        "model": {"inflated": None},
        "notes": ["a note"],
    }
    text = report.toml(found, {"model": 'a "folder"\\é', "draft_timeout": 2.5, "drafter": "ngram"})
    assert "nothing was faster" in text
    assert "a note" not in text
    assert tomllib.loads(text) == {"model": 'a "folder"\\é', "draft_timeout": 2.5, **found["best"]}
