"""Offline batches: OpenAI's format, refusals line by line, and a run that was killed anywhere goes on where it was."""

import json

import pytest

from forerun import batch
from forerun.batch import Ledger, run
from forerun.errors import ConfigError, ForerunError

MODEL = {"model": "toy:0:5", "drafter": "none", "planner": "fixed", "max_requests": 2}
GOOD = [{"prompt": [i % 5, 1, 2], "max_tokens": 4 + i % 3, "seed": i, "n": 1 + i % 2} for i in range(9)]


def line(name, body, url="/v1/completions", method="POST"):
    return json.dumps({"custom_id": name, "method": method, "url": url, "body": body})


@pytest.fixture
def source(tmp_path):
    def write(lines):
        path = tmp_path / "in.jsonl"
        path.write_text("\n".join(lines) + "\n")
        return path, tmp_path / "out.jsonl"

    return write


def rows(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


def told(path):
    """custom_id -> texts, without what differs from run to run."""
    found = {}
    for row in rows(path):
        assert row["custom_id"] not in found, "a line was answered twice"
        found[row["custom_id"]] = [c["text"] for c in row["response"]["body"]["choices"]]
    return found


def test_every_line_is_answered_as_the_endpoint_would(source):
    given, out = source([line(f"r{i}", body) for i, body in enumerate(GOOD)])
    found = run(given, out, MODEL)
    assert (found["requests"], found["completed"], found["failed"], found["skipped"]) == (9, 9, 0, 0)
    row = next(row for row in rows(out) if row["custom_id"] == "r3")
    assert row["error"] is None
    assert row["response"]["status_code"] == 200
    body = row["response"]["body"]
    assert body["object"] == "text_completion"
    assert [c["finish_reason"] for c in body["choices"]] == ["length", "length"]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert found["tokens"] == sum(row["response"]["body"]["usage"]["completion_tokens"] for row in rows(out))


def test_a_full_disk_ends_in_one_sentence_and_the_run_goes_on_later(source, disk_of):
    given, out = source([line(f"r{i}", body) for i, body in enumerate(GOOD)])
    with disk_of(1000), pytest.raises(ForerunError, match=r"^cannot write '.*out.jsonl' \(File too large\); make room"):
        run(given, out, MODEL)
    assert len(out.read_bytes()) == 1000  # the last line is torn
    found = run(given, out, MODEL)
    assert 0 < found["skipped"] == 9 - found["completed"]
    whole = told(out)
    out.unlink()
    run(given, out, MODEL)
    assert told(out) == whole


def test_a_conversation_is_answered(source):
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_completion_tokens": 8, "temperature": 0}
    given, out = source([line("c", body, "/v1/chat/completions")])
    run(given, out, {"model": "reference", "drafter": "none", "planner": "fixed"})
    body = rows(out)[0]["response"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["message"]["content"]


def test_a_torn_output_is_repaired_wherever_it_was_cut(source):
    given, out = source([line(f"r{i}", body) for i, body in enumerate(GOOD)])
    run(given, out, MODEL)
    whole, wanted = out.read_bytes(), told(out)
    for cut in range(0, len(whole), 97):
        out.write_bytes(whole[:cut])
        found = run(given, out, MODEL)
        assert told(out) == wanted
        assert found["skipped"] == whole[:cut].count(b"\n")


def test_a_run_that_breaks_midway_loses_only_what_was_not_written(source, monkeypatch):
    given, out = source([line(f"r{i}", body) for i, body in enumerate(GOOD)])
    right, count = Ledger.write, [0]

    def breaking(self, row):
        count[0] += 1
        if count[0] == 5:
            raise KeyboardInterrupt
        right(self, row)

    monkeypatch.setattr(Ledger, "write", breaking)
    with pytest.raises(KeyboardInterrupt):
        run(given, out, MODEL)
    assert len(rows(out)) == 4
    monkeypatch.setattr(Ledger, "write", right)
    assert run(given, out, MODEL)["completed"] == 5
    assert set(told(out)) == {f"r{i}" for i in range(9)}


BAD = [
    ("nonsense", None, "is no JSON"),
    ("[" * 100_000, None, "is no JSON"),
    (json.dumps({"method": "POST"}), None, "has no custom_id"),
    (line("get", {"prompt": "a"}, method="GET"), "get", "is no request"),
    (line("url", {"prompt": "a"}, url="/v1/embeddings"), "url", "is no request"),
    (line("body", "a"), "body", "is no request"),
    (line("typo", {"prompt": [1], "temprature": 1}), "typo", "did you mean 'temperature'"),
    (line("range", {"prompt": [1], "temperature": -1}), "range", "temperature is -1"),
    (line("many", {"prompt": [1], "n": 99}), "many", "n is 99"),
    (line("best", {"prompt": [1], "n": 1, "best_of": 2}), "best", "ask for n texts and choose"),
    (line("stream", {"prompt": [1], "stream": True}), "stream", "ask a server"),
    (line("several", {"prompt": ["a", "b"]}), "several", "a line of its own"),
    (line("twice", {"prompt": [1]})[:-2] + ', "prompt": [2]}}', None, "stands twice"),
    (line("kind", {"prompt": {"a": 1}}), "kind", "prompt cannot be read"),
    (line("token", {"prompt": [7]}), "token", "does not exist"),
    (line("long", {"prompt": [1] * 64}), "long", "shorten it"),
    (line("stop", {"prompt": [1], "stop": 5}), "stop", ""),
    (line("chat", {"messages": [{"role": "user", "content": "a"}]}, "/v1/chat/completions"), "chat", "chat template"),
    (line("surrogate \ud800", {"prompt": [9]}), "surrogate \ud800", "does not exist"),
    (line("fine", {"prompt": [2]}), None, "custom_id of an earlier line"),
]


def test_a_bad_line_is_refused_alone_and_once(source):
    given, out = source([line("fine", {"prompt": [1]}), *(text for text, _, _ in BAD)])
    found = run(given, out, MODEL)
    assert (found["completed"], found["failed"]) == (1, len(BAD))
    by_id = {row["id"]: row for row in rows(out)}
    for number, (_, name, sentence) in enumerate(BAD, 2):
        row = by_id[f"batch_req_{number}"]
        assert (row["custom_id"], row["response"]["status_code"]) == (name, 400)
        assert sentence in row["response"]["body"]["error"]["message"]
    assert run(given, out, MODEL)["skipped"] == 1 + len(BAD)
    assert len(rows(out)) == 1 + len(BAD)


def test_a_request_that_fails_says_so(source, monkeypatch):
    given, out = source([line("a", GOOD[0])])
    monkeypatch.setattr(batch, "OWN", {"scheduler": "fcfs"})
    body = {"prompt": [1], "allowed_tokens": [1], "bad_words": [[1]], "max_tokens": 2}
    given.write_text(line("a", body) + "\n")
    assert run(given, out, MODEL)["failed"] == 1
    assert "leave no token" in rows(out)[0]["response"]["body"]["error"]["message"]
    assert rows(out)[0]["response"]["status_code"] == 500


def test_files_that_cannot_be_used_are_refused(source, tmp_path):
    given, out = source([line("a", GOOD[0])])
    with pytest.raises(ConfigError, match="cannot read"):
        run(tmp_path / "none.jsonl", out, MODEL)
    with pytest.raises(ConfigError, match="cannot write"):
        run(given, tmp_path, MODEL)
    out.write_text("something else\n{}\n")
    with pytest.raises(ConfigError, match=r"line 1 of .* is no answer of a batch"):
        run(given, out, MODEL)
    assert out.read_text() == "something else\n{}\n"


@pytest.mark.parametrize("said", ["", "\n \n"])
def test_a_file_without_requests_is_refused_before_anything_is_written(source, said):
    given, out = source([])
    given.write_text(said)
    with pytest.raises(ConfigError, match="holds no request; give a file with one request per line"):
        run(given, out, MODEL)
    assert not out.exists()
