"""What is said of drafts, and where tokens begin in a text."""

import pytest

from forerun.engine.stats import RequestStats
from forerun.server.shapes import ChatReport, CompletionReport, StepReport, drafting
from forerun.types import Draft, Emission, Event, Logprob, Turn

BYTES = [b"a", "é".encode()[:1], "é".encode()[1:], "🙂".encode(), b"bc"]


def emissions(tokens):
    return [Emission(t, "target", Logprob(-1.0, 1, ((t, -1.0),))) for t in tokens]


def judged(*turns):
    """Statistics of turns, each (drafted, accepted) of a chain."""
    stats = RequestStats()
    for drafted, accepted in turns:
        stats.count(Turn(tuple(emissions([0] * (accepted + 1))), (), drafted, drafted), accepted + 1)
    return stats


def test_acceptance_has_the_bonus():
    found = drafting(judged((3, 3), (3, 0), (2, 1), (0, 0)))
    assert found == {
        "mean_acceptance_length": pytest.approx(1 + 4 / 3),
        "draft_acceptance_rate": pytest.approx(4 / 8),
        "acceptance_histogram": [1, 1, 0, 1],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 8,
    }
    assert drafting(judged((0, 0)))["mean_acceptance_length"] == 1.0


def test_offsets_count_characters_however_tokens_come():
    tokens = [0, 1, 2, 3, 4, 0]
    whole = CompletionReport(BYTES.__getitem__).of(emissions(tokens))["text_offset"]
    assert whole == [0, 1, 1, 2, 3, 5]
    report = CompletionReport(BYTES.__getitem__)
    assert [report.of(emissions([t]))["text_offset"][0] for t in tokens] == whole


def test_bytes_of_split_characters_add_up():
    found = ChatReport(BYTES.__getitem__).of(emissions([1, 2]))["content"]
    assert bytes(b for t in found for b in t["bytes"]).decode() == "é"
    assert [t["token"] for t in found] == ["\ufffd", "\ufffd"]


def test_a_step_tells_tokens_tree_and_path():
    draft = Draft((0, 4, 3), (-1, -1, 0), source=("one", "one", "two"))
    event = Event(7, (Emission(0, "one"), Emission(4, "target")), "abc", draft=draft, path=(0,))
    assert StepReport(BYTES.__getitem__).of(event) == {
        "tokens": [[0, "a", "one"], [4, "bc", "target"]],
        "draft": [[0, "a", "one", -1], [4, "bc", "one", -1], [3, "🙂", "two", 0]],
        "path": (0,),
    }


def test_a_character_of_several_tokens_is_said_once():
    report = StepReport(BYTES.__getitem__)
    steps = [report.of(Event(7, (Emission(t, "target"),), "")) for t in (0, 1, 2, 3)]
    assert [step["tokens"][0][1] for step in steps] == ["a", "", "é", "🙂"]
    assert [(step["draft"], step["path"]) for step in steps] == [([], ())] * 4
