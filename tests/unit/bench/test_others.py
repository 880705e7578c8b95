"""overhead, memory and compare-transformers."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from forerun.bench import overhead, roofline
from forerun.bench.cli import command
from forerun.errors import ConfigError
from forerun.kernels import native


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize(("kind", "tokens"), [("plain", 1), ("zero", 1), ("accepted", 9), ("rejected", 1)])
def test_each_kind_of_step_is_what_it_says(kind, tokens, sampling):
    found = overhead.measure(overhead.Case(kind, sampling, 2), 10, overhead.words)
    assert found["tokens_per_step"] == pytest.approx(tokens, rel=0.05)
    assert 0 < found["median_us"] <= found["p90_us"]


def test_the_overhead_report_ends_in_json():
    result = CliRunner().invoke(command, ["overhead", "--steps", "10"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert len(report["cases"]) == len(overhead.CASES)
    assert all((case["goal_us"] is None) == (case["requests"] > 1) for case in report["cases"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_measured_in_a_process_of_its_own():
    result = CliRunner().invoke(command, ["memory", "--model", "toy:0", "--threads", "1"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["cache_bytes"] == 2 * 8 * (64 + 64)  # keys and values, float64, context and slack
    assert report["tokens"] == 16
    assert report["peak_bytes"] >= report["loading_peak_bytes"] >= 0
    assert report["allowed_bytes"] == int(1.1 * (report["weight_bytes"] + report["cache_bytes"]))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_grows_by_what_is_touched():
    """In a process of its own: threads of other tests give memory back whenever they like."""
    code = """if True:
        import mmap
        from forerun.bench import memory
        before = memory.resident()["now"]
        with mmap.mmap(-1, 1 << 25) as block:  # fresh pages; what an allocator hands out may be resident already
            block.write(bytes([1]) * (1 << 25))
            print(memory.resident()["now"] - before)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.8 * (1 << 25)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, "1M"])
def test_transformers_is_compared_on_the_same_weights(folder, size):
    flags = ["--model", str(folder), "--threads", "1", "--prompts", "1", "--repeats", "1", "--max-tokens", "8"]
    second = f"draft-model:model={folder},depth=2"
    drafters = ["--drafter", "ngram", "--drafter", second, *(("--inflate", size) if size else ())]
    result = CliRunner().invoke(command, ["compare-transformers", *flags, *drafters, "--categories", "story,code"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    players = report["players"]
    assert (report["model"]["weight_bytes"] > 1_900_000) == (size is not None)
    theirs = ["transformers", "transformers prompt lookup", "transformers assisted"]
    assert list(players) == [*theirs, "forerun plain", "forerun ngram", f"forerun {second}"]
    assert all(figures["equal"] + figures["ties"] == figures["texts"] == 2 for figures in players.values())


def test_the_command_is_listed_without_loading_a_model():
    code = "import sys, forerun.bench.cli; assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
def test_the_roofline_ends_in_json_and_its_figures_agree(tmp_path):
    picture = tmp_path / "curve.png"
    order = ["--shapes", "1M", "--rounds", "2", "--threads", "1", "--out", str(picture)]
    result = CliRunner().invoke(command, ["roofline", *order])
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(result.stdout.splitlines()[-1])
    assert [(c["shape"], c["dtype"]) for c in report["cases"]] == [("1M", "int8"), ("1M", "bf16")]
    whole, half = report["cases"]
    assert 1.6 < half["bytes_per_pass"] / whole["bytes_per_pass"] < 2.0
    for found in report["cases"]:
        assert list(found["ms"]) == ["1", "2", "4", "8", "16"]
        assert found["curve"]["1"] == 1
        assert found["curve"]["16"] == pytest.approx(found["ms"]["16"] / found["ms"]["1"], rel=0.02)
        seconds = found["bytes_per_pass"] / found["bandwidth_gbs"] / 1e9
        assert found["share_of_limit"] == pytest.approx(seconds / (found["ms"]["1"] / 1e3), rel=0.02)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(("--passes", "padded"), marks=pytest.mark.skipif(native.load() is None, reason="reads no memory")),
        pytest.param(("--device", "cuda"), marks=pytest.mark.gpu),
    ],
    ids=str,
)
def test_the_roofline_measures_the_runner_on_padded_passes(where):
    order = ["roofline", "--shapes", "1M", "--dtype", "bf16", "--rounds", "2", "--threads", "1", "--widths", "1,3"]
    result = CliRunner().invoke(command, [*order, *where])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout.splitlines()[-1])["cases"]
    assert list(found["ms"]) == ["1", "3"]
    assert 0 < found["share_of_limit"] < 1


@pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
def test_the_roofline_counts_what_keys_and_values_are_kept_in():
    def bytes_read(kept: str) -> int:
        flags = ["--shapes", "1M", "--dtype", "int8", "--rounds", "1", "--threads", "1", "--context", "512"]
        result = CliRunner().invoke(command, ["roofline", *flags, "--kv-dtype", kept])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])["cases"][0]["bytes_per_pass"]

    layers, dims, scales = 2, 2 * 64, 2 * 4
    assert bytes_read("bf16") - bytes_read("int8") == 512 * layers * (dims - scales)


def test_the_roofline_refuses_padded_passes_with_another_kv_dtype():
    problem = CliRunner().invoke(command, ["roofline", "--passes", "padded", "--kv-dtype", "int8"]).exception
    assert isinstance(problem, ConfigError)
    assert "kv_dtype 'int8'" in str(problem) or native.load() is None


def test_a_table_that_is_kept_has_whole_figures(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    widths = {str(2**n): 12345.68 for n in range(7)}
    case = {"shape": "1.1B", "dtype": "w8a8", "threads": 2, "share_of_limit": 0.9, "ms": widths, "curve": widths}
    roofline.show({"title": "passes", "bandwidth_gbs": 30.0, "cases": [case]})
    assert capsys.readouterr().out.count("12345.68") == len(widths)


@pytest.mark.parametrize(("flag", "known"), [("--shapes", "125M"), ("--dtype", "int8")])
def test_the_roofline_refuses_what_it_does_not_know(flag, known):
    problem = CliRunner().invoke(command, ["roofline", flag, "7T"]).exception
    assert isinstance(problem, ConfigError)
    assert known in str(problem) or native.load() is None
