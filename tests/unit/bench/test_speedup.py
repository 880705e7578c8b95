import pytest

from forerun.bench import measure
from forerun.bench.drive import turns
from forerun.bench.speedup import parameters
from forerun.errors import ConfigError

DRAFTERS = ("ngram:width=3", "draft-model:model=toy:1,depth=2")
FLAGS = [flag for drafter in DRAFTERS for flag in ("--drafter", drafter)]


def test_the_last_line_holds_every_figure(bench, last_line):
    result = bench(*FLAGS)
    assert result.exit_code == 0, result.output
    report = last_line(result)
    assert report["machine"].keys() >= {"cpu", "cores", "torch", "threads", "dtype"}
    assert report.keys() >= {"date", "command", "model", "settings", "convention", "differences", "notes"}
    assert list(report["drafters"]) == ["plain", *DRAFTERS]
    for name, categories in report["drafters"].items():
        assert list(categories) == ["humaneval", "all"]
        figures = categories["humaneval"]
        assert figures["tokens"] == 4 * 2 * 12
        assert figures["equality"] == {"compared": True, "texts": 8, "equal": 8, "ties": 0, "divergences": 0}
        assert figures["ms_per_step"].keys() == {"draft", "target", "verify", "other"}
        assert sum(figures["sources"].values()) == pytest.approx(1)
        assert figures["speedup"]["runs"] == 8
        assert figures["draft_failures"] == 0
        if name == "plain":
            assert figures["tokens_per_step"] == 1
            assert figures["speedup"]["median"] == 1
            assert figures["acceptance_per_position"] == []
        else:
            assert figures["tokens_per_step"] > 1
            assert 0 < figures["acceptance_rate"] <= 1
            assert len(figures["acceptance_per_position"]) == (3 if "width" in name else 2)


def test_the_table_shows_every_drafter(bench):
    shown = "".join(bench(*FLAGS).stdout.splitlines()[:-1])
    assert "ngram:width=3" in shown
    assert "plain" in shown
    assert "draft-model" in shown


def test_auto_is_said_by_its_name(bench, last_line):
    assert list(last_line(bench())["drafters"]) == ["plain", "ngram"]


def wrong(generate, at, token):
    """A faulty engine: a drafted text has `token` at position `at`."""

    def broken(llm, prompts, samplings):
        run = generate(llm, prompts, samplings)
        if llm.config.drafter == "none" or run.tokens <= at:
            return run
        texts = tuple((*text[:at], token(text[at]), *text[at + 1 :]) for text in run.texts)
        return measure.Run(texts, run.seconds, run.first_token_seconds, run.stats, run.clock)

    return broken


def test_a_divergence_is_said_loudly_and_exits_1(bench, last_line, monkeypatch):
    monkeypatch.setattr(measure, "generate", wrong(measure.generate, 5, lambda t: (t + 1) % 3))
    result = bench("--drafter", "ngram", "--prompts", "1", "--max-tokens", "40")
    assert result.exit_code == 1
    assert "DIVERGENCE" in result.stdout
    assert "DIVERGED" in result.stdout
    report = last_line(result)
    assert report["divergences"] == 2
    assert report["differences"][0]["position"] == 5
    assert report["differences"][0]["gap"] > report["differences"][0]["margin"]
    assert report["drafters"]["ngram"]["all"]["equality"]["equal"] == 0


def test_a_text_that_ends_early_is_a_divergence(bench, last_line, monkeypatch):
    generate = measure.generate

    def short(llm, prompts, samplings):
        run = generate(llm, prompts, samplings)
        texts = run.texts if llm.config.drafter == "none" else tuple(text[:-1] for text in run.texts)
        return measure.Run(texts, run.seconds, run.first_token_seconds, run.stats, run.clock)

    monkeypatch.setattr(measure, "generate", short)
    result = bench("--drafter", "ngram", "--prompts", "1")
    assert result.exit_code == 1
    assert last_line(result)["differences"][0]["found"] is None


def test_sampled_texts_are_not_compared_unless_the_draws_are_the_same(bench, last_line):
    result = bench("--drafter", "ngram", "--temperature", "1", "--verifier", "rejection")
    assert result.exit_code == 0
    assert "not compared" in result.stdout
    assert not last_line(result)["drafters"]["ngram"]["all"]["equality"]["compared"]
    same = last_line(bench("--drafter", "ngram", "--temperature", "1", "--verifier", "match"))
    assert same["drafters"]["ngram"]["all"]["equality"]["equal"] == 8


def test_several_prompts_run_together(bench, last_line):
    figures = last_line(bench("--drafter", "ngram", "--max-requests", "3"))["drafters"]["ngram"]["all"]
    assert figures["speedup"]["runs"] == 2 * 2  # groups of 3 and of 1, two rounds
    assert figures["equality"]["equal"] == 8


def test_an_enlarged_model_is_called_that(bench, last_line, folder, tmp_path):
    result = bench("--drafter", "ngram", "--model", str(folder), "--inflate", "1M", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "INFLATED to 1M" in result.stdout.replace("\n", " ")
    report = last_line(result)
    assert report["model"]["inflated"] == "1M"
    assert report["model"]["weight_bytes"] > 1_900_000
    assert "Acceptance is the small model's" in report["notes"][0]
    assert "INFLATED to 1M" in (tmp_path / "out" / "bench.html").read_text()


def test_a_toy_model_cannot_be_enlarged(bench):
    problem = bench("--inflate", "350M").exception
    assert "toy:0:3 cannot be enlarged" in str(problem)


def test_size_is_a_number_of_parameters():
    assert parameters("350M") == 350_000_000
    assert parameters("1.5b") == 1_500_000_000


@pytest.mark.parametrize("size", ["", "M", "350", "x5M", "-1B", "5T"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ConfigError, match="350M or 1B"):
        parameters(size)


def test_engines_take_turns():
    assert list(turns(3, 3)) == [(0, [0, 1, 2]), (1, [2, 1, 0]), (2, [0, 1, 2])]


def test_flags_before_a_sub_command_are_refused(bench):
    result = bench("overhead")
    assert result.exit_code == 2
    assert "write it after the sub-command" in result.output
