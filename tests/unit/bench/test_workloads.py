import json

import pytest

from forerun.bench.workloads import OWN, SETS, Prompt, encode, load
from forerun.errors import ConfigError
from forerun.models.tokenizer import Tokenizer


def write(folder, name, rows):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_own_prompts_are_part_of_the_package():
    for name in OWN:
        prompts = load([name], 1000)
        assert len(prompts) >= 12
        assert len({p.text for p in prompts}) == len(prompts)
        assert all(p.chat == (name == "chat") for p in prompts)
    assert [p.category for p in load(["code", "story", "code"], 2)] == ["code"] * 2 + ["story"] * 2


def test_a_set_has_parts(tmp_path):
    kinds = ("writing", "qa", "coding", "qa", "qa")
    write(tmp_path, "spec_bench/question.jsonl", [{"category": k, "turns": [k, "then"]} for k in kinds])
    found = load(["spec_bench"], 2, tmp_path)
    assert [(p.category, p.text) for p in found] == [
        ("spec_bench/mt_bench", "writing"),
        ("spec_bench/mt_bench", "coding"),
        ("spec_bench/qa", "qa"),
        ("spec_bench/qa", "qa"),
    ]
    assert {p.category for p in load(["spec_bench/qa"], 9, tmp_path)} == {"spec_bench/qa"}
    with pytest.raises(ConfigError, match=r"'spec_bench' has no part 'qaa'; did you mean 'qa'"):
        load(["spec_bench/qaa"], 1, tmp_path)
    for name in SETS["eagle_eval"]:
        write(tmp_path, name, [{"turns": ["x"]}])
    assert [p.category for p in load(["eagle_eval"], 1, tmp_path)] == [
        f"eagle_eval/{part}" for part in ("mt_bench", "humaneval", "gsm8k", "alpaca", "sum", "qa")
    ]


@pytest.mark.parametrize("name", SETS)
def test_a_missing_set_is_said_in_one_sentence(name, tmp_path):
    with pytest.raises(ConfigError, match=rf"category '{name}' needs .* --data\.$"):
        load([name], 1, tmp_path)


def test_what_is_no_set_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'story'"):
        load(["stories"], 1)
    write(tmp_path, "humaneval/HumanEval.jsonl", [{"turns": []}])
    with pytest.raises(ConfigError, match="is not the humaneval set"):
        load(["humaneval"], 1, tmp_path)


def test_what_does_not_fit_is_left_out_and_said():
    toy = Tokenizer.from_folder("toy:0")
    prompts = [Prompt("a", "abc"), Prompt("a", "abcabc"), Prompt("a", "b"), Prompt("b", "c", chat=True)]
    found = encode(prompts, toy, 3)
    assert [(i.category, i.number, i.tokens) for i in found.items] == [
        ("a", 1, (0, 1, 2)),
        ("a", 3, (1,)),
        ("b", 1, (2,)),
    ]
    assert found.notes[0] == "a: 1 of 3 prompts have more than 3 tokens and were left out."
    assert "no chat template" in found.notes[1]
    with pytest.raises(ConfigError, match="no prompt has at most 0 tokens"):
        encode(prompts, toy, 0)
