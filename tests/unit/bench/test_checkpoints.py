"""The made-up checkpoints are real ones: transformers and forerun read them, and agree."""

import json

import pytest
import torch

from forerun import LLM, Sampling
from forerun.bench.checkpoints import checkpoint, once, write
from forerun.errors import ForerunError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint("1M", tmp_path_factory.mktemp("work"))


def test_it_is_made_once_and_whole(tmp_path):
    calls = []

    def make(folder):
        calls.append(folder)
        (folder / "file").write_text("x")

    assert once(tmp_path / "a", make) == once(tmp_path / "a", make) == tmp_path / "a"
    assert len(calls) == 1
    assert (tmp_path / "a" / "file").read_text() == "x"


def test_a_failure_leaves_nothing(tmp_path):
    def make(folder):
        (folder / "file").write_text("x")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        once(tmp_path / "a", make)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, disk_of):
    with disk_of(100_000), pytest.raises(ForerunError, match=r"^cannot write '.*a' \(.*large.*\); make room"):
        once(tmp_path / "a", lambda folder: write("1M", folder))
    with disk_of(3_000_000), pytest.raises(ForerunError, match=r"^cannot write '.*a' \(.*large.*\); make room"):
        once(tmp_path / "a", lambda folder: (folder / "file").write_bytes(bytes(4_000_000)))
    assert not list(tmp_path.iterdir())


def test_transformers_and_forerun_read_the_same_model(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompt = AutoTokenizer.from_pretrained(folder)("ab cd").input_ids
    llm = LLM(str(folder), drafter="none")
    assert list(llm.tokenizer.encode("ab cd")) == prompt
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    mine = llm.generate([prompt], Sampling(temperature=0.0, max_tokens=8, ignore_eos=True))[0]
    assert list(mine.tokens) == found[0, len(prompt) :].tolist()


def test_every_token_has_a_name(folder):
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(config["vocab_size"]))
    assert tokenizer["model"]["merges"]
