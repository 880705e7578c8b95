"""A folder that was made larger writes what the small one writes, and every program can read it."""

import json

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from forerun import LLM, Sampling
from forerun.cli import program
from forerun.errors import ConfigError
from forerun.quantize import one_pass

PROMPT = "Once upon a time"


def write(*arguments):
    return CliRunner().invoke(program, ["bench", "inflate", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("work") / "big"
    found = write("40M", out)
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout.splitlines()[-1])
    assert 38_000_000 < report["parameters"] < 42_000_000
    assert "INFLATED to 40M" in report["notes"][0]
    return out


def test_it_writes_what_the_small_one_writes(folder):
    small, big = LLM("reference", drafter="none"), LLM(str(folder), drafter="none")
    assert big.model.info.num_layers == 24
    assert big.model.info.companion == small.model.info.companion
    tokens = small.encode(PROMPT)
    assert torch.allclose(one_pass(small.model, tokens, 4), one_pass(big.model, tokens, 4), atol=1e-4)
    sampling = Sampling(temperature=0.0, max_tokens=48)
    assert big.generate(PROMPT, sampling)[0].tokens == small.generate(PROMPT, sampling)[0].tokens


def test_another_program_reads_the_same_model(folder):
    llm = LLM("reference", drafter="none")
    tokens = llm.encode(PROMPT)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, -1]
    assert torch.allclose(logits, one_pass(llm.model, tokens, 1)[0], atol=1e-3)


def test_what_cannot_be_is_refused(folder, tmp_path):
    assert isinstance(write("40M", folder).exception, ConfigError)
    small = LlamaConfig(vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    LlamaForCausalLM(small).save_pretrained(tmp_path / "small")
    assert "ask for a larger size" in str(write("20k", tmp_path / "big", "--model", tmp_path / "small").exception)
    values = json.loads((tmp_path / "small" / "config.json").read_text())
    (tmp_path / "small" / "config.json").write_text(json.dumps(values | {"model_type": "qwen2"}))
    assert "is no Llama" in str(write("3M", tmp_path / "big", "--model", tmp_path / "small").exception)
    assert not (tmp_path / "big").exists()
