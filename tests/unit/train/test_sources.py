"""Texts are cleaned and stories asked for as described."""

import json
import re

import pytest

from forerun.errors import TrainError
from forerun.train import sources, stories
from forerun.train.data import default_folder


def test_case_is_restored():
    names = stories.names(["They saw Lily and Lily met Tim, and Tim and Lily and Tim ran. The dog saw Lily."] * 3)
    assert {"lily", "tim"} <= names
    assert "dog" not in names
    told = 'one day, lily saw a dog. she said, "look, tim!" he ran.\n"i am here." they left.'
    assert (
        stories.restore_case(told, names)
        == 'One day, Lily saw a dog. She said, "Look, Tim!" he ran.\n"I am here." They left.'
    )


@pytest.mark.parametrize("seed", range(6))
def test_request_is_a_question_without_the_story(seed):
    story = "Once upon a time, there was a little car named Beep. Beep loved fast games. " + "Beep went home. " * 9
    asked = stories.request(story, seed)
    assert asked
    assert len(asked) < len(story) / 2
    assert "  " not in asked


def test_unknown_words_leave_wikitext():
    line = ' Homarus , known as " lobster " , is <unk> blue . It eats 3 @.@ 5 ( or 4 ) . '
    assert sources.detokenise(line) == "It eats 3.5 (or 4)."


def test_books_are_unwrapped_into_whole_paragraphs(tmp_path):
    (tmp_path / "b.txt").write_text("One\nline.\n\n" + "Two " * 2000 + "\n\nThree.\n", encoding="utf-8")
    parts = list(sources.read_book("b.txt")(tmp_path))
    assert len(parts) == 2
    assert parts[0].startswith("One line.\n\nTwo Two")
    assert parts[1] == "Three."


def test_gsm8k_drops_the_calculator_marks(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    row = {"question": "1+1?", "answer": "1+1 = <<1+1=2>>2\n#### 2"}
    (tmp_path / "gsm8k/train_500.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (document,) = sources.read_gsm8k(tmp_path)
    assert document.turns == (("user", "1+1?"), ("assistant", "1+1 = 2\n#### 2"))


@pytest.mark.parametrize("source", ["smalltalk", "codetalk"])
def test_written_talk_is_bundled(source, tmp_path):
    documents = list(sources.READERS[source](tmp_path))
    assert all([role for role, _ in d.turns] == ["user", "assistant"] for d in documents)
    assert len({d.key for d in documents}) == len(documents)


def test_written_scripts_are_python(tmp_path):
    for text in sources.read_scripts(tmp_path):
        compile(text, "script", "exec")


def phrases(text, length=13):
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


@pytest.mark.parametrize("file", ["humaneval/HumanEval.jsonl", "mbpp/mbpp.jsonl", "spec_bench/question.jsonl"])
def test_what_was_written_is_not_what_is_evaluated(file, tmp_path):
    path = default_folder() / file
    if not path.is_file():
        pytest.skip(f"needs {file} in ../shared/data")
    theirs = {p for row in sources.rows(path) for p in phrases(" ".join(map(str, row.values())))}
    assert len(theirs) > 1000
    for source in ("smalltalk", "codetalk", "scripts"):
        for item in sources.READERS[source](tmp_path):
            document = sources.as_document(source, item)
            assert not phrases(" ".join(content for _, content in document.turns)) & theirs


def test_python_source_is_the_standard_library(tmp_path):
    total = 0
    for text, _ in zip(sources.read_code(tmp_path), range(20), strict=False):
        compile(text, "stdlib", "exec")
        total += len(text)
    assert total > 20 * sources.SHORTEST_CODE


def test_missing_folder_and_unknown_source_are_said(tmp_path):
    with pytest.raises(TrainError, match="--data"):
        sources.read(tmp_path, ["stories"])
    with pytest.raises(TrainError, match="did you mean 'stories'"):
        sources.read(tmp_path, ["storys"])
