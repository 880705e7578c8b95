"""R13, R10 in small: a thousand requests of every kind at once; no wrong token, no hang, nothing left behind."""

from dataclasses import replace

import pytest

from forerun import LLM
from forerun.bench import soak
from forerun.bench.soak import SHARES, WORDS, Answer, Order, expected, planned, right, run
from forerun.engine.engine import Engine
from forerun.models.tokenizer import ToyTokenizer
from forerun.models.toy import ToyModel


@pytest.mark.slow
def test_a_thousand_requests_leave_nothing_behind():
    found = run(Order(requests=1000))
    assert found["kinds"].keys() == SHARES.keys()
    assert all(counts["requests"] > 10 for counts in found["kinds"].values())
    assert {kind: counts["wrong"] for kind, counts in found["kinds"].items()} == dict.fromkeys(SHARES, 0)
    assert (found["hanging"], found["server_errors"]) == (0, 0)
    assert found["sound"], found["left"]


def test_what_is_kept_is_seen(monkeypatch):
    """One request's rows are not given back; who leaves early may have none, so that it is the first that has."""
    unseat, kept = Engine._unseat, []

    def forgetful(engine, request):
        if request.id >= 20 and request.slot is not None and not kept:  # not of those before anything is counted
            kept.append(request.slot)
            request.slot = None
        unseat(engine, request)

    monkeypatch.setattr(Engine, "_unseat", forgetful)
    monkeypatch.setattr(soak, "PATIENCE", 1.0)
    monkeypatch.setattr(soak, "WARM", 8)
    found = run(Order(requests=60, clients=8))
    assert found["left"]["cache"][0] > found["left"]["cache"][1]
    assert not found["sound"]


def test_a_wrong_answer_is_seen():
    library = LLM(ToyModel(context_length=600, words=WORDS), ToyTokenizer(*WORDS), threads=1, profiles="off")
    kinds = {planned(number).kind: number for number in range(200)}
    assert kinds.keys() == SHARES.keys()
    for kind, number in kinds.items():
        assert not right(library, number, None)
        assert not right(library, number, Answer(500, whole=True))
        if kind not in {"leaves", "half", "wrong", "large"}:
            sound = expected(library, planned(number))
            assert right(library, number, sound)
            assert not right(library, number, replace(sound, whole=False))
            assert not right(library, number, replace(sound, texts=[text + "a" for text in sound.texts]))
