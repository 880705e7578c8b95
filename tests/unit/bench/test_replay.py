"""A replay drives a drafter as greedy decoding of the same text does, and says so in numbers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from forerun.bench import replay, tasks
from forerun.bench.cli import command
from forerun.bench.cli import replay as command_of_replay
from forerun.bench.drafts import free
from forerun.bench.replay import Record, Tally
from forerun.cli import program
from forerun.drafters import DRAFTERS
from forerun.drafters.contract import SoloDrafter
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.tokenizer import Tokenizer
from forerun.models.toy import ToyModel
from forerun.testing import Ask, Toy
from forerun.types import Costs, Draft, Outcome, Sampling

TOKENIZER = Tokenizer.from_folder("toy:0:5")
SPELLED = (
    "none",
    "ngram:min_match=1",
    "aggressive:match=1",
    "copyspec:gamma=1",
    *("hierarchy-drafting:match=1,shared=false", "several:of=[(ngram:min_match=1),(copyspec:gamma=1)]"),
)


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_replay_counts_what_the_engine_does(spelled):
    model, prompt = ToyModel(5, 3), (0, 1, 2, 0, 1, 3)
    rig = Toy(drafter=spelled, model=model, planner="fixed:nodes=4").build()
    number = rig.add(Ask(prompt, Sampling(temperature=0, max_tokens=40)))
    rig.finish()
    text, stats = rig.text(number), rig.said[number][-1].stats
    tally = replay.replay(replay.open_drafter(spelled, 5, TOKENIZER), 0, Record("x", prompt, text.tokens), 4, 5)
    assert (tally.tokens, tally.steps, tally.nodes) == (40, stats.steps, stats.drafted)
    assert tally.accepted == 40 - tally.steps


class Tree(SoloDrafter):
    """The same tree always; writes down what became of it."""

    facts = DRAFTERS["none"].facts
    draft = Draft((5, 6, 7, 6), (-1, -1, 0, 0))

    def __init__(self, options=None, setup=None):
        self.outcomes: list[Outcome] = []
        self.seen = []

    def propose_one(self, context, budget):
        self.seen.append((tuple(context.tokens), budget))
        return self.draft if budget >= 4 else Draft()

    def observe(self, batch, outcomes):
        self.outcomes += outcomes


def test_a_drafter_sees_its_path_and_the_token_after_it():
    drafter, record = Tree(), Record("x", (1, 2, 3), (5, 6, 9, 6, 5, 9))
    tally = replay.replay(drafter, 0, record, 4, 10)
    assert [(o.verdict.path, o.verdict.token) for o in drafter.outcomes[:2]] == [((0, 3), 9), ((), 6)]
    assert drafter.outcomes[0].work.tokens == (1, 2, 3, 5, 6, 7, 6)
    assert drafter.outcomes[0].work.parents == (-1, 0, 1, 2, 2, 3, 3)
    assert drafter.outcomes[0].work.logits == (2, 3, 4, 5, 6)
    assert drafter.outcomes[1].work.tokens == (9,)
    assert drafter.seen == [((1, 2, 3), 4), ((1, 2, 3, 5, 6, 9), 2), ((1, 2, 3, 5, 6, 9, 6), 1)]
    assert (tally.steps, tally.nodes, tally.accepted, tally.drafts) == (4, 4, 2, 1)


def test_what_looks_at_logits_is_refused():
    with pytest.raises(ConfigError, match="'token-recycling' looks at the target's logits, which a replay does not"):
        replay.open_drafter("token-recycling", 10, TOKENIZER)
    with pytest.raises(ConfigError, match="'lookahead' looks at the target's logits"):
        replay.open_drafter("several:of=[ngram,lookahead]", 10, TOKENIZER)


def files(tmp_path):
    rows = [
        {"prompt": "abab", "output": "ababab", "category": "copy"},
        {"prompt_tokens": [0, 1], "tokens": [2, 0, 1, 2]},
    ]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "plain.txt").write_text("abcabcabcabcabcabcabc")
    return [tmp_path / "some.jsonl", tmp_path / "plain.txt"]


def test_texts_are_read_from_lines_traces_and_plain_files(tmp_path):
    records = list(replay.read(files(tmp_path), Tokenizer.from_folder("toy:0:3")))
    assert records[0] == Record("copy", (0, 1, 0, 1), (0, 1, 0, 1, 0, 1))
    assert records[1] == Record("some", (0, 1), (2, 0, 1, 2))
    assert records[2].category == "plain"
    assert (*records[2].prompt, *records[2].output) == (0, 1, 2) * 7
    assert len(records[2].prompt) == 2
    for content in ("{", "[]", '{"output": "a"}'):
        (tmp_path / "broken.jsonl").write_text(content)
        with pytest.raises(ConfigError, match=r"broken\.jsonl cannot be replayed"):
            list(replay.read([tmp_path / "broken.jsonl"], Tokenizer.from_folder("toy:0:3")))
    (tmp_path / "broken.txt").write_bytes(b"a\xff")
    with pytest.raises(ConfigError, match=r"broken\.txt is not UTF-8 \(at byte 1\); convert it"):
        list(replay.read([tmp_path / "broken.txt"], Tokenizer.from_folder("toy:0:3")))


def test_the_command_prints_a_case_per_drafter_and_category(tmp_path):
    paths = [str(path) for path in files(tmp_path)]
    flags = ["--tokenizer", "toy:0:3", "--drafter", "ngram", "--drafter", "none", "--nodes", "4"]
    result = CliRunner().invoke(command_of_replay, [*paths, *flags])
    assert result.exit_code == 0, result.output
    cases = {(c["drafter"], c["category"]): c for c in json.loads(result.stdout.splitlines()[-1])["cases"]}
    assert set(cases) == {(d, c) for d in ("ngram", "none") for c in ("copy", "some", "plain", "all")}
    assert cases["none", "all"]["tokens_per_step"] == 1
    assert cases["ngram", "plain"]["tokens_per_step"] == pytest.approx(19 / 7)
    assert cases["ngram", "all"]["tokens"] == sum(cases["ngram", c]["tokens"] for c in ("copy", "some", "plain"))
    assert "replay" in CliRunner().invoke(program, ["--help"]).output


def test_what_is_generated_as_json_can_be_replayed(tmp_path):
    flags = ["--model", "toy:0:5", "--threads", "1", "--temperature", "0", "--max-tokens", "12", "--json"]
    line = CliRunner().invoke(program, ["generate", "abc", *flags]).stdout
    (tmp_path / "trace.jsonl").write_text(line)
    (record,) = replay.read([tmp_path / "trace.jsonl"], Tokenizer.from_folder("toy:0:5"))
    assert record.prompt == (0, 1, 2)
    assert list(record.output) == json.loads(line)["tokens"]


def test_tallies_add_up():
    one, two = Tally(1, 10, 5, 4, 20, 5, 2000, 1000), Tally(1, 30, 10, 5, 20, 20, 1000, 500)
    one.add(two)
    found = one.figures()
    assert found["tokens_per_step"] == pytest.approx(40 / 15)
    assert found["acceptance_rate"] == pytest.approx(25 / 40)
    assert found["propose_us_per_step"] == pytest.approx(0.2)
    assert found["us_per_token"] == pytest.approx(4.5 / 40)


class Letters(type(Tokenizer.from_folder("toy:0:3"))):
    """Every character is a token."""

    def encode(self, text, *, specials=False, bos=True):
        return list(text.encode())

    def encode_within(self, text):
        return self.encode(text)


def book(folder: Path) -> Path:
    sentence = "It was the best of times, and he said that there is a house by the river. "
    (folder / "books").mkdir(parents=True)
    (folder / tasks.BOOK).write_text("\n\n".join(f"{number} {sentence * 6}" for number in range(60)))
    return folder


def test_tasks_are_what_they_say(tmp_path):
    found = tasks.load(Letters("a"), 2, book(tmp_path))
    by_category = {category: [r for r in found if r.category == category] for category in {r.category for r in found}}
    assert {name: len(held) for name, held in by_category.items()} == {
        "code-edit": 2,
        "grammar": 2,
        "extract": 2,
        "prose": 2,
        "repeated-first": 20,
        "repeated": 180,
    }
    for record in by_category["code-edit"]:
        old, new = (bytes(tokens).decode().splitlines() for tokens in (record.prediction, record.output))
        changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
        assert 0 < len(changed) < len(old) / 3
        assert all(f"`{a.strip()}` by `{b.strip()}`" in bytes(record.prompt).decode() for a, b in changed)
    for record in by_category["grammar"]:
        assert record.prediction != record.output
        assert bytes(record.prediction) in bytes(record.prompt)
    assert {r.category for r in tasks.load(Letters("a"), 1, None)} == {"code-edit", "repeated-first", "repeated"}


def test_the_benchmark_counts_against_one_drafter(data, last_line):
    flags = ["--drafter", "token-recycling", "--drafter", "copyspec:gamma=2", "--against", "none"]
    sizes = ["--prompts", "1", "--nodes", "4", "--max-tokens", "12", "--tokenizer", "reference"]
    model = ["--model", "toy:0", "--threads", "1", "--categories", "humaneval", "--data", str(data)]
    found = last_line(CliRunner().invoke(command, ["drafts", *flags, *sizes, *model]))
    cases = {(c["drafter"], c["how"], c["category"]): c for c in found["cases"]}
    assert {key[0] for key in cases if key[1] == "target"} == {"plain", "none", "token-recycling", "copyspec:gamma=2"}
    assert {key[0] for key in cases if key[1] == "replay"} == {"none", "copyspec:gamma=2"}
    assert {key[2] for key in cases if key[1] == "replay"} == {"code-edit", "repeated-first", "repeated"}
    assert all(case["over"] == pytest.approx(case["tokens_per_step"]) for case in cases.values())
    assert all(case["speedup"]["median"] > 0 for case in cases.values())
    assert any("looks at the target's logits" in note for note in found["notes"])
    assert any("neither grammar" in note for note in found["notes"])
    book(data)
    again = last_line(CliRunner().invoke(command, ["drafts", *flags, *sizes, *model]))
    assert {c["category"] for c in again["cases"] if c["how"] == "replay"} >= {"grammar", "extract", "prose"}


@pytest.mark.parametrize("spelled", free())
def test_whoever_is_measured_unasked_needs_no_file(spelled):
    assert len(LLM("reference", drafter=spelled, threads=1).generate(["Once"], Sampling(max_tokens=2))[0].tokens) == 2


def test_passes_are_counted_by_their_rows():
    record = Record("x", (1, 2), (3, 4, 5, 6), (3, 4, 9, 9))
    drafter, costs = replay.open_drafter("prediction", 10, TOKENIZER), Costs((1, 2), (1.0, 1.5))
    tally = replay.replay(drafter, 0, record, 8, 10, costs)
    assert tally.steps == 2  # of 3 + 1 rows and of one: the last token has room for no draft
    assert tally.pass_ns == pytest.approx(1e9 * (costs.of(4) + costs.of(1)))
    assert tally.figures()["pass_us_per_token"] == pytest.approx(1e6 * 3.5 / 4)


def test_a_record_keeps_its_prediction():
    record = Record("x", (1, 2), (3, 4, 5, 6), (3, 4, 5, 6))
    drafter = replay.open_drafter("prediction", 10, TOKENIZER)
    assert replay.replay(drafter, 0, record, 8, 10).steps == 1
    assert replay.replay(drafter, 0, replace(record, prediction=()), 8, 10).steps == 4


@pytest.mark.parametrize("spelled", ["sam-decoding", "suffix-decoding"])
def test_what_was_answered_before_is_drafted_better_and_better(spelled):
    tokenizer = Tokenizer.from_folder("reference")
    drafter = replay.open_drafter(spelled, tokenizer.vocab_size, tokenizer)
    first, more = Tally(), Tally()
    repeated = [record for record in tasks.load(tokenizer, 0, None) if record.category.startswith("repeated")]
    for number, record in enumerate(repeated[:60]):
        found = replay.replay(drafter, number, record, 16, tokenizer.vocab_size)
        (first if record.category == "repeated-first" else more).add(found)
    steps = [part.figures()["tokens_per_step"] for part in (first, more)]
    assert steps[0] > 2
    assert steps[1] > 1.1 * steps[0]
