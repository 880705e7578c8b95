"""The command line as a person meets it: what it prints, and one sentence for everything that cannot be."""

import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from forerun.cli import main, program
from forerun.errors import RequestError

TOY = ["--model", "toy:0:5", "--threads", "1"]


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["forerun", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


def test_generate_prints_the_text_of_plain_decoding(run):
    fast = run("generate", "abcab", *TOY, "--temperature", "0", "--max-tokens", "12", "--drafter", "ngram:min_match=1")
    plain = run("generate", "abcab", *TOY, "--temperature", "0", "--max-tokens", "12", "--decoder", "autoregressive")
    assert fast == plain
    assert fast[0] == 0
    assert len(fast[1].strip()) == 12


def test_json_holds_tokens_sources_and_statistics(run):
    flags = ["--temperature", "0", "--max-tokens", "9", "--drafter", "draft-model:model=toy:0:5", "--json"]
    code, out, _ = run("generate", "ab", *TOY, *flags, "--planner", "fixed")
    found = json.loads(out)
    assert code == 0
    assert len(found["tokens"]) == len(found["sources"]) == 9
    assert set(found["sources"]) == {"target", "draft-model"}
    assert found["tokens_per_step"] == pytest.approx(9 / found["steps"])


def test_a_constraint_is_text_or_a_file(run, tmp_path):
    (tmp_path / "words.txt").write_text("ab,ca\n")
    flags = ["generate", "ab", *TOY, "--seed", "1"]
    said = [run(*flags, "--constraint", value) for value in ("choice=ab,ca", f"choice:most=9=@{tmp_path}/words.txt")]
    assert said[0] == said[1]
    assert said[0][1].strip() in {"ab", "ca"}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("=a", "write it as NAME=TEXT"), ("regex=@nowhere", "cannot be read"), ("regx=a", "did you mean 'regex'")],
)
def test_a_constraint_that_cannot_be_is_refused(run, value, sentence):
    code, _, error = run("generate", "ab", *TOY, "--constraint", value)
    assert code == 2
    assert sentence in error


def test_a_prediction_is_drafted(run, tmp_path):
    flags = ["ab", *TOY, "--temperature", "0", "--max-tokens", "9", "--json"]
    plain = json.loads(run("generate", *flags)[1])
    (tmp_path / "expected.txt").write_text(plain["text"])
    expected = ["--planner", "fixed", "--drafter", "prediction", "--prediction", str(tmp_path / "expected.txt")]
    found = json.loads(run("generate", *flags, *expected)[1])
    assert found["tokens"] == plain["tokens"]
    assert "prediction" in found["sources"]
    assert found["steps"] < plain["steps"]
    streamed = run("generate", *flags[:-1], *expected)
    assert streamed[1].strip() == plain["text"]
    assert run("generate", *flags, "--prediction", "nowhere")[0] == 2


def test_a_seed_that_need_not_bring_its_text_again_says_so(run):
    flags = ["ab", *TOY, "--max-tokens", "5", "--seed", "1", "--json"]

    def said(*more):
        return json.loads(run("generate", *flags, *more)[1])["seed_caveat"]

    uncoupled = ["--verifier", "rejection"]
    assert said() is None  # match
    assert said(*uncoupled, "--planner", "fixed") is None
    assert said(*uncoupled, "--temperature", "0") is None
    assert said(*uncoupled) == (
        "planner 'auto' goes by measured times, so a seed may bring another sampled text the next time; "
        "use verifier='match' for the same."
    )
    both = said(*uncoupled, "--drafter", "suffix-decoding")
    assert "times and drafter 'suffix-decoding' goes by earlier requests, so a seed" in both


def test_a_text_that_is_not_the_models_own_says_so(run):
    flags = ["ab", *TOY, "--max-tokens", "5", "--seed", "1"]
    assert json.loads(run("generate", *flags, "--json")[1])["exact"] is True
    assert run("generate", *flags)[2] == ""
    lossy = [*flags, "--verifier", "typical"]
    found = json.loads(run("generate", *lossy, "--json")[1])
    assert found["exact"] is False
    sentence = "verifier 'typical' changes the model's distribution; leave verifier out for the model's own."
    assert found["caveat"] == sentence
    assert run("generate", *lossy)[2] == f"forerun: {sentence}\n"
    both = [*lossy, "--decoder", "fs-gen:fast=toy:1:5,sure=0"]
    said = run("generate", *both)[2]
    assert "decoder 'fs-gen' writes from the fast model's distribution where it is sure" in said
    assert "leave verifier and decoder out" in said
    assert "identical to plain decoding: no (" in run("demo", *both, "--repeats", "1")[1]


def test_n_prints_every_text(run):
    flags = ["ab", *TOY, "--max-tokens", "9", "--seed", "5"]
    code, out, _ = run("generate", *flags, "--n", "3", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len({tuple(sample["tokens"]) for sample in found}) == 3
    assert [sample["text"] for sample in found] == run("generate", *flags, "--n", "3")[1].splitlines()
    assert run("generate", *flags)[1].rstrip("\n") == found[0]["text"]
    again = json.loads(run("generate", *flags[:-1], str(found[2]["seed"]), "--json")[1])
    assert again["tokens"] == found[2]["tokens"]
    assert run("generate", *flags, "--n", "0")[2] == "forerun: n is 0; give a whole number of at least 1.\n"


def test_one_failed_text_of_many_is_said_after_the_others(capsys):
    from forerun.cli import _print_all

    results = [SimpleNamespace(text="a", error=None), SimpleNamespace(text="b", error="too hot.")]
    assert _print_all(results, as_json=False) == ["too hot."]
    assert capsys.readouterr().out == "a\nb\n"


def test_demo_checks_that_it_is_identical(run):
    code, out, _ = run("demo", "ab", *TOY, "--max-tokens", "9", "--drafter", "ngram", "--repeats", "1")
    assert code == 0
    assert "identical to plain decoding: yes" in out
    assert "tokens per step" in out


def talk(monkeypatch, lines, stream):
    """What a conversation of such lines puts on the terminal; `stream(messages)` yields the answers' events."""
    lines, said = iter(lines), []

    class Console:
        def __init__(self, **_):
            pass

        def input(self, _):
            return next(lines)

        def out(self, text, **_):
            said.append(text)

    class Model:
        tokenizer = type("Tokenizer", (), {"chat": staticmethod(list)})

        def stream(self, messages, _):
            for text in stream(messages):
                yield type("Event", (), {"text": text, "error": None})

    monkeypatch.setattr("forerun.terminal.Console", Console)
    from forerun.terminal import converse

    converse(Model(), None, "be brief")
    return [text for text in said if text]


def test_chat_remembers_and_ends_with_an_empty_line(monkeypatch):
    said = talk(monkeypatch, ["hello", "again", ""], lambda messages: [f"answer {len(messages)}"])
    assert said == ["answer 2", "answer 4"]


def test_chat_goes_on_behind_an_interrupt_with_what_was_said(monkeypatch):
    def stream(messages):
        yield f"answer {len(messages)}"
        if len(messages) == 2:
            raise KeyboardInterrupt
        yield messages[-2]["content"]

    assert talk(monkeypatch, ["hello", "again", ""], stream) == ["answer 2", "answer 4", "answer 2"]


def test_chat_goes_on_without_what_cannot_be_answered(monkeypatch, capsys):
    def stream(messages):
        if messages[-1]["content"] == "too long":
            raise RequestError("the prompt is too long; shorten it.")
        yield f"answer {len(messages)}"

    said = talk(monkeypatch, ["hello", "too long", "again", ""], stream)
    assert said == ["answer 2", "answer 4"]
    assert capsys.readouterr().err == "forerun: the prompt is too long; shorten it.\n"


def test_methods_as_json_has_what_was_promised(run):
    code, out, _ = run("methods", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {"name", "family", "key", "facts", "options", "evidence"} <= rows[0].keys()
    keys = {(row["name"], row["key"]) for row in rows if row["family"] == "drafter"}
    assert {("draft-model", "speculative-decoding"), ("draft-model", "speculative-sampling"), ("ngram", None)} <= keys


REFUSED = [
    (["--drafter", "ngramm"], "did you mean 'ngram'"),
    (["--drafter", "ngram:widht=3"], "did you mean 'width'"),
    (["--verifier", "matsch"], "did you mean 'match'"),
    (["--drafter", "draft-model"], "give model=FOLDER"),
    (["--drafter", "draft-model:model=toy:0:4"], "shares the target's tokenizer"),
    (["--model", "/nowhere/at/all"], "there is no model folder"),
    (["--temperature", "-1"], "give a number from 0"),
    (["--dtype", "float8"], "value of dtype"),
    (["--context-length", "2"], "shorten it"),
]


@pytest.mark.parametrize(("flags", "sentence"), REFUSED)
def test_what_cannot_be_is_one_sentence_and_exit_code_two(run, flags, sentence):
    code, out, err = run("generate", "abc", *TOY, *flags)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_unknown_flags_and_commands_are_named():
    found = CliRunner().invoke(program, ["generate", "abc", "--temprature", "1"])
    assert found.exit_code == 2
    assert "--temperature" in found.output
    assert CliRunner().invoke(program, ["genarate"]).exit_code == 2
    assert "whole numbers of 1 or more" in CliRunner().invoke(program, ["bench", "trees", "--nodes", "8,x"]).output


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["generate", "--help"],
        ["bench", "--help"],
        ["bench", "trees", "--help"],
        ["study", "--help"],
        ["train", "--help"],
    ],
)
def test_every_command_explains_itself(command):
    found = CliRunner().invoke(program, command)
    assert found.exit_code == 0
    assert "Usage:" in found.output


def test_a_full_disk_ends_in_one_sentence():
    command = [sys.executable, "-c", "from forerun.cli import main; main()", "methods"]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert found.returncode == 2
    assert re.fullmatch(r"forerun: nothing more .* \(No space left on device\); make room .*\.\n", found.stderr)


def test_an_interrupt_ends_in_one_sentence(tmp_path):
    flags = ["--model", "toy:0:5", "--threads", "1", "--max-tokens", "100000", "--context-length", "64"]
    loop = "import forerun.models.toy as t, signal, time; f = t.ToyModel.forward\n"
    loop += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job may have inherited none
    loop += "def slow(*a):\n    print('running', flush=True); time.sleep(0.2); return f(*a)\n"
    loop += "t.ToyModel.forward = slow\nfrom forerun.cli import main; main()"
    command = [sys.executable, "-c", loop, "generate", "abc", *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        for _ in range(3):  # what the first steps import has been imported then
            assert process.stdout.readline().endswith("running\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "forerun: interrupted; nothing was left half-written."
