"""`forerun bench peers` with engines made up here: who runs when, who is left out, and what the report holds."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from forerun.bench import contest
from forerun.bench.cli import command
from forerun.bench.contest import Order
from forerun.bench.engines import OWN, PEERS, Peer, entrants, own
from forerun.bench.enlarged import pair
from forerun.errors import ConfigError
from forerun.kernels import native
from forerun.models.load import companion_of, folder_of

FAKE = """
import json
from pathlib import Path

class Engine:
    version = "0"

    def prepare(self, source, target, variant):
        assert Path(source, "model.safetensors").is_file()
        Path(target, "made").write_text(variant)

    def load(self, path, variant, threads):
        self.name, self.calls = {name!r} + " " + variant, 0
        return {{"load_seconds": 0.5}}

    def _note(self, task, count):
        with Path({journal!r}).open("a") as file:
            file.write(json.dumps([self.name, task, count]) + "\\n")
        self.calls += 1
        return {{"seconds": {pace} * count, "tokens": count}}

    def decode(self, prompt, tokens):
        return self._note("decode", tokens - 1)

    def prefill(self, prompt):
        return self._note("prefill", len(prompt))

    def width(self, context, rows):
        return self._note(f"width {{len(rows)}}", len(rows))
"""
BATCH = """
    def batch(self, prompts, tokens):
        return self._note("batch", len(prompts) * (tokens - 1))
"""
DIES = """
    def batch(self, prompts, tokens):
        if self.calls > 5:
            import os
            os._exit(1)
        return self._note("batch", 8)
"""
STUMBLES = """
    def batch(self, prompts, tokens):
        raise ValueError("a batch is beyond me")
"""
SPECULATES = """
    def draft(self, path, variant):
        assert Path(path, "made").read_text() == variant.split()[0]
        assert "draft-" in path

    def speculate(self, prompt, tokens):
        return self._note("speculate", tokens - 1)
"""
OWN_SPECULATES = (
    BATCH
    + """
    def draft(self, path, variant):
        assert Path(path, "config.json").is_file()

    def speculate(self, prompt, tokens):
        return self._note("speculate", tokens - 1)
"""
)
NO_DRAFT = """
    def draft(self, path, variant):
        raise NotImplementedError("not with this backend")

    def speculate(self, prompt, tokens):
        raise AssertionError
"""
LACKS = "import no_such_package\n"
REFUSES = """
    def load(self, path, variant, threads):
        raise NotImplementedError("this dtype is not known.")
"""
FINE_FAILS = """
    def load(self, path, variant, threads):
        if variant == "fine":
            raise NotImplementedError("not here.")
        self.name, self.calls = "forerun " + variant, 0
        return {"load_seconds": 0.5}
"""
SMALL = {"prompt": 4, "tokens": 5, "prefill": 6, "sequences": 2, "context": 3, "widths": (1, 2), "rounds": 3}


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch):
    monkeypatch.setattr(contest, "_BUFFER", 1 << 20)


@pytest.fixture
def make(tmp_path):
    """A made-up peer of a name, a pace and something particular."""

    def build(name, pace=1.0, extra=BATCH, before="", **variants):
        text = before + FAKE.format(name=name, pace=pace, journal=str(tmp_path / "journal")) + extra
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        return Peer(name, str(file), f"{name}-package", variants or {"int8": ("q8",)}, converts=name != "forerun")

    return build


@pytest.fixture
def race(tmp_path, make):
    """Runs forerun's stand-in and some peers at the smallest shape."""

    def run(*peers, own=None, **order):
        given = {**SMALL, "dtypes": ("int8",), **order}
        own = own or make("forerun", 0.5)
        return contest.run(Order(tmp_path / "work", shapes=("1M",), **given), peers, own)

    return run


def journal(tmp_path):
    return [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]


def test_everyone_takes_turns_in_an_order_that_moves_on(race, make, tmp_path):
    race(make("a"), make("b"))
    names = ["forerun q8", "a q8", "b q8"]
    calls = journal(tmp_path)
    groups = [calls[at : at + 3] for at in range(0, len(calls), 3)]
    assert len(groups) == 4 * 5  # a warm-up and three rounds of five tasks
    assert all(sorted(who for who, _, _ in group) == sorted(names) for group in groups)
    assert all(len({(task, count) for _, task, count in group}) == 1 for group in groups)
    first = [group[0][0] for group in groups]
    decode = first[5::5]
    assert sorted(decode) == sorted(names)  # nobody begins a task twice in three rounds
    assert len(set(first[5:10])) == 3  # nor all tasks of a round
    for group in groups:
        turned = [names.index(who) for who, _, _ in group]
        assert [(n - turned[0]) % 3 for n in turned] == [0, 1, 2]


def test_figures_ratios_and_the_shape_of_the_report(race, make):
    report = race(make("a", 2.0), make("b", 1.0))
    (case,) = report["cases"]
    assert report["left_out"] == []
    assert list(case["entrants"]) == ["forerun q8", "a q8", "b q8"]
    mine = case["entrants"]["forerun q8"]
    assert list(mine["tasks"]) == ["decode", "prefill", "batch", "width 1", "width 2"]
    assert mine["tasks"]["decode"] == {"unit": "tokens/s", "median": 2, "low": 2, "high": 2, "runs": 3}
    assert mine["tasks"]["width 2"] == {"unit": "ms", "median": 1000, "low": 1000, "high": 1000, "runs": 3}
    assert mine["load_seconds"] == 0.5
    assert case["entrants"]["a q8"]["file_bytes"] == len("q8")
    assert [(r["task"], r["best_peer"], r["ratio"]["median"]) for r in case["ratios"]] == [
        (task, "b q8", 2) for task in mine["tasks"]
    ]


def test_only_equal_bits_are_compared(race, make):
    report = race(make("a", 0.1, int4=("q4",)), make("b", int8=("q8",)), dtypes=("int8", "int4"))
    assert {r["best_peer"] for r in report["cases"][0]["ratios"]} == {"b q8"}


@pytest.mark.parametrize("rows", [["forerun fine", "forerun fast"], ["forerun fast"]])
def test_a_further_variant_of_forerun_has_rows_and_no_ratios(race, make, rows):
    own = make("forerun", 0.5, extra=BATCH if len(rows) > 1 else BATCH + FINE_FAILS, int8=("fine", "fast"))
    (case,) = race(make("a"), own=own)["cases"]
    assert list(case["entrants"]) == [*rows, "a q8"]
    assert all(case["entrants"][name]["tasks"]["decode"]["runs"] == 3 for name in rows)
    assert {ratio["forerun"] for ratio in case["ratios"]} == {"forerun fine"} & {*rows}


def test_conversions_are_made_once(race, make, tmp_path):
    race(make("a", int8=("q8 fast", "q8 slow")))
    made = tmp_path / "work" / "1M" / "a-q8" / "made"
    assert made.read_text() == "q8"
    made.write_text("kept")
    race(make("a", int8=("q8 fast", "q8 slow")))
    assert made.read_text() == "kept"


def test_a_peer_that_is_not_installed_is_left_out_with_the_remedy(race, make):
    report = race(make("a", before=LACKS, int8=("q8", "q8k")), make("b"))
    (out,) = report["left_out"]
    assert (out["engine"], out["task"], out["status"]) == ("a", None, "not installed")
    assert out["why"] == f"no module 'no_such_package' for {sys.executable}; {sys.executable} -m pip install a-package"
    assert list(report["cases"][0]["entrants"]) == ["forerun q8", "b q8"]


def test_a_peer_that_dies_is_left_out_and_the_others_go_on(race, make):
    report = race(make("a", extra=DIES), make("b"))
    (out,) = report["left_out"]
    assert (out["engine"], out["status"]) == ("a q8", "failed")
    assert "ended with code 1" in out["why"]
    (case,) = report["cases"]
    assert list(case["entrants"]) == ["forerun q8", "b q8"]
    assert case["entrants"]["b q8"]["tasks"]["batch"]["runs"] == 3


@pytest.mark.parametrize(
    ("extra", "status", "why"), [(STUMBLES, "failed", "ValueError: a batch is beyond me"), ("", None, None)]
)
def test_a_peer_without_one_task_keeps_the_others(race, make, extra, status, why):
    report = race(make("a", extra=extra))
    found = report["cases"][0]["entrants"]["a q8"]["tasks"]
    assert "batch" not in found
    assert found["decode"]["runs"] == 3
    assert [(out["task"], out["status"], out["why"]) for out in report["left_out"]] == (
        [("batch", status, why)] if status else []
    )


def test_a_dtype_that_is_refused_is_not_available(race, make):
    report = race(make("a", extra=BATCH + REFUSES))
    (out,) = report["left_out"]
    assert (out["engine"], out["status"], out["why"]) == ("a q8", "not available", "this dtype is not known.")


def test_speculation_is_measured_where_there_is_any(race, make, monkeypatch):
    peers = make("a", extra=SPECULATES), make("b", extra=NO_DRAFT), make("c")
    monkeypatch.setattr(contest, "pair", lambda _, place: pair("30M", place))  # smaller than any shape but one
    report = race(*peers, own=make("forerun", 0.5, extra=OWN_SPECULATES), reference=True)
    (found,) = report["cases"]
    speculated = {f"speculate {category}" for category in ("story", "chat", "code")}
    entrants = found["entrants"].items()
    assert {name for name, entrant in entrants if speculated <= {*entrant["tasks"]}} == {"forerun q8", "a q8"}
    (out,) = report["left_out"]
    assert (out["engine"], out["task"], out["status"]) == ("b q8", "speculate", "not available")
    ratios = {one["task"]: one["ratio"]["median"] for one in found["ratios"]}
    assert {ratios[name] for task in speculated for name in (task, f"{task} over decode")} == {2.0}
    assert not speculated & {*race(*peers)["cases"][0]["entrants"]["a q8"]["tasks"]}


@pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
def test_forerun_itself_does_every_task(tmp_path):
    order = Order(tmp_path, shapes=("1M",), dtypes=("int8",), threads=1, **{**SMALL, "tokens": 32})
    (case,) = contest.run(order, peers=())["cases"]
    assert list(case["entrants"]) == ["forerun int8", "forerun w8a8"]
    for mine in case["entrants"].values():
        assert list(mine["tasks"]) == ["decode", "prefill", "batch", "width 1", "width 2"]
        assert all(figure["runs"] == 3 and figure["median"] > 0 for figure in mine["tasks"].values())
    assert case["bandwidth_gbs"]["runs"] == 3
    assert case["ratios"] == []


@pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
def test_forerun_itself_speculates():
    """On the bundled pair as it is; enlarged it writes the same."""
    engine = own.Engine()
    target = folder_of("reference")
    engine.load(str(target), "int8", 1)
    engine.draft(companion_of(target), "int8")
    prompt = engine.llm.encode("Once upon a time")
    found = engine.speculate(prompt, 32)
    assert found["tokens"] >= 24
    assert found["seconds"] > 0
    assert engine.drafted.engine.stats.rows > engine.drafted.engine.stats.steps + len(prompt)  # somebody drafted


def test_the_pair_is_made_once(tmp_path):
    target = pair("30M", tmp_path)
    assert sum(file.stat().st_size for file in target.glob("*.safetensors")) == pytest.approx(60e6, rel=0.1)
    assert (target.with_name("draft") / "model.safetensors").read_bytes() == (
        Path(companion_of(folder_of("reference"))) / "model.safetensors"
    ).read_bytes()
    made = (target / "model.safetensors").stat().st_mtime_ns
    assert pair("30M", tmp_path) == target
    assert (target / "model.safetensors").stat().st_mtime_ns == made


def test_the_tables_name_everyone_and_everything_left_out(race, make, capsys):
    contest.show(race(make("a"), make("b", extra=STUMBLES), make("c", before=LACKS)))
    text = capsys.readouterr().out
    for words in ("forerun q8", "a q8", "b q8, batch: failed: ValueError", "c: not installed:", "T(2) ms", "best peer"):
        assert words in text


@pytest.mark.parametrize(
    ("order", "name"),
    [({"shapes": ("7T",)}, "125M"), ({"dtypes": ("int3",)}, "int4"), ({"only": ("lama.cpp",)}, "llama.cpp")],
)
def test_what_does_not_exist_is_refused(tmp_path, order, name):
    with pytest.raises(ConfigError, match=name):
        contest.run(Order(tmp_path, **order))


def test_the_choice_of_peers_is_kept(race, make):
    report = race(make("a"), make("b"), only=("b",))
    assert list(report["cases"][0]["entrants"]) == ["forerun q8", "b q8"]
    names = [entrant.name for entrant in entrants([OWN, *PEERS[:1]], ("int4", "int8"))]
    fours, eights = ["forerun int4", "llama.cpp Q4_0", "llama.cpp Q4_K_M"], ["forerun int8", "forerun w8a8"]
    assert names == [*fours, *eights, "llama.cpp Q8_0"]


def test_the_command_ends_in_json(monkeypatch, make, tmp_path):
    real, peers, own = contest.run, (make("a"),), make("forerun")
    monkeypatch.setattr(contest, "run", lambda order: real(replace(order, **SMALL), peers, own))
    flags = ["--work", str(tmp_path / "work"), "--shapes", "1M", "--dtype", "int8", "--python", f"a={sys.executable}"]
    result = CliRunner().invoke(command, ["peers", *flags])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["benchmark"] == "peers"
    assert list(report["cases"][0]["entrants"]) == ["forerun q8", "a q8"]


def test_an_interpreter_needs_its_engine(tmp_path):
    result = CliRunner().invoke(command, ["peers", "--work", str(tmp_path), "--python", "venv/bin/python"])
    assert result.exit_code == 2
    assert "ENGINE=PATH" in result.output
