"""Prompts come from a text or from JSON lines; what is neither is refused in a sentence."""

import json

import pytest

from forerun.bench.workloads import Prompt
from forerun.errors import ConfigError
from forerun.tune.prompts import CATEGORY, read


def test_a_text_has_one_prompt_per_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Once upon a time\n\n  The dög \n")
    assert read(path) == [Prompt(CATEGORY, "Once upon a time"), Prompt(CATEGORY, "The dög")]


def test_json_lines_hold_texts_and_first_turns(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"prompt": "def f():\n"}) + "\n\n" + json.dumps({"turns": ["Hello!", "And?"]}))
    assert read(path) == [Prompt(CATEGORY, "def f():\n"), Prompt(CATEGORY, "Hello!", chat=True)]


REMEDY = r"give a text with one prompt per line, or JSON objects with a prompt in a \.jsonl file\.$"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"", f"^prompts file '.*a.txt' holds no prompt; {REMEDY}"),
        ("a.txt", b" \n\n", f"holds no prompt; {REMEDY}"),
        ("a.jsonl", b"\n", f"holds no prompt; {REMEDY}"),
        ("a.txt", b"abc\xff", r"^prompts file '.*' is not UTF-8 \(byte 3\); save it as a text in UTF-8\.$"),
        ("a.jsonl", b'{"prompt": "a"}\nhello', f"^line 2 of prompts file '.*' is no JSON object with .*; {REMEDY}"),
        ("a.jsonl", b"[1]", f"^line 1 of .* is no JSON object with 'prompt' or 'turns'; {REMEDY}"),
        ("a.jsonl", b'{"turns": []}', "is no JSON object with"),
        ("a.jsonl", b'{"text": "a"}', "is no JSON object with"),
        ("a.jsonl", b"3", "is no JSON object with"),
        ("a.jsonl", b'{"prompt": 3}', r"^line 1 of .* has 3 for a prompt; give a text that is not empty\.$"),
        ("a.jsonl", b'{"prompt": ""}', "has '' for a prompt"),
    ],
)
def test_what_holds_no_prompts_is_said(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path / name)


@pytest.mark.parametrize(("name", "reason"), [("none.txt", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_said(tmp_path, name, reason):
    with pytest.raises(ConfigError, match=rf"^prompts file '.*' cannot be read \({reason}\); {REMEDY}"):
        read(tmp_path / name)
