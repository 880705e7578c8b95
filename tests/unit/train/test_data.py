"""Documents are split, packed and drawn as promised."""

import numpy as np
import pytest
import torch

from forerun.train import data, sources
from forerun.train.sources import TEXT, Document


def test_split_is_disjoint_complete_and_never_empty(documents):
    train, held = data.split(documents)
    assert held
    assert not {d.key for d in train} & {d.key for d in held}
    assert sorted(d.key for d in train + held) == sorted(d.key for d in documents)


def test_split_of_one_source_holds_out_at_least_one():
    documents = [Document("s", key, ((TEXT, key),)) for key in ("a", "b")]
    train, held = data.split(documents)
    assert (len(train), len(held)) == (1, 1)


def test_both_forms_of_a_story_fall_on_the_same_side(documents):
    chats = [Document("chat", d.key, (("user", "Tell!"), ("assistant", d.key))) for d in documents]
    assert {d.key for d in data.split(documents)[1]} == {d.key for d in data.split(chats)[1]}


def test_pack_separates_documents_and_formats_turns(words):
    said = "a <|end|> b"
    packed = data.pack([Document("x", "k", ((TEXT, "the dog"),)), Document("x", "m", (("user", said),))], words)
    text = words.decode(packed.ids.tolist(), skip_special_tokens=False)
    assert text == f"the dog<|endoftext|><|user|>{said}<|end|><|endoftext|>"
    assert packed.ids.dtype == np.uint16
    # The name of a special token inside a text stays text: one end of turn, not two.
    assert (packed.ids == words.token_to_id("<|end|>")).sum() == 1
    assert packed.starts.tolist() == [0, int(np.flatnonzero(packed.ids == 0)[0]) + 1]


def test_window_goes_round_the_end():
    packed = data.Packed(np.arange(5, dtype=np.uint16), np.array([0]))
    assert packed.window(3, 5).tolist() == [3, 4, 0, 1, 2]


def test_batch_depends_on_seed_and_step_only(words, documents):
    packed = {"toy": data.pack(documents, words)}
    one, same = (data.Sampler(packed, {"toy": 1.0}, seed=3) for _ in range(2))
    assert torch.equal(one.batch(5, 4, 16), same.batch(5, 4, 16))
    assert not torch.equal(one.batch(5, 4, 16), one.batch(6, 4, 16))
    assert one.batch(0, 4, 16).shape == (4, 17)


def test_batch_follows_the_weights():
    packed = {
        "a": data.Packed(np.zeros(9, np.uint16), np.array([0])),
        "b": data.Packed(np.ones(9, np.uint16), np.array([0])),
    }
    rows = data.Sampler(packed, {"a": 1.0, "b": 3.0}, seed=0).batch(0, 2000, 4)
    assert rows.float().mean().item() == pytest.approx(0.75, abs=0.03)


def test_half_of_the_sequences_start_with_a_document(words, documents):
    packed = data.pack(documents, words)
    rows = data.Sampler({"toy": packed}, {"toy": 1.0}, seed=0).batch(0, 1000, 8)
    begins = {tuple(packed.window(s, 9).tolist()) for s in packed.starts}
    share = np.mean([tuple(row) in begins for row in rows.tolist()])
    assert 0.45 < share < 0.65


def test_validation_windows_of_a_short_source_wrap():
    packed = data.Packed(np.arange(3, dtype=np.uint16), np.array([0]))
    assert data.windows(packed, 4, 8).tolist() == [[0, 1, 2, 0, 1]]


def test_no_reader_touches_an_evaluation_set(tmp_path, monkeypatch):
    """Every reader is run over a folder of traps: a path of an evaluation set would raise."""
    opened = []
    monkeypatch.setattr(sources.Path, "read_bytes", lambda self: opened.append(self.as_posix()) or b"")
    monkeypatch.setattr(sources.Path, "read_text", lambda self, **_: opened.append(self.as_posix()) or "")
    for name, reader in sources.READERS.items():
        if name != "python":
            try:
                list(reader(tmp_path))
            except (OSError, EOFError, IndexError, ValueError):
                continue
    assert opened
    forbidden = ("eagle_eval", "spec_bench", "humaneval", "mbpp", "gsm8k/test")
    assert not [path for path in opened if any(name in path for name in forbidden)]


def test_some_lines_are_tokenised_apart_and_nothing_is_lost():
    text = "".join(f"def f{i}():\n    return {i}\n\n" for i in range(200))
    parts = data.cut(text)
    assert "".join(parts) == text
    assert 5 < len(parts) < 60
    assert all(part.startswith("\n") for part in parts[1:])
    assert data.cut("no line ends here") == ["no line ends here"]
