import json

import pytest
from click.testing import CliRunner

from forerun.bench.cli import command

PROMPTS = ("abcabcab", "bca", "aaabbb", "ccab")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny random Llama with a tokenizer of its own."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes, eos_token_id=2, initializer_range=0.5))
    model.save_pretrained(path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def data(tmp_path):
    """A folder with a public set that the toy model can read."""
    folder = tmp_path / "data"
    (folder / "humaneval").mkdir(parents=True)
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    (folder / "humaneval" / "HumanEval.jsonl").write_text(lines)
    return folder


@pytest.fixture
def bench(data):
    """Runs `forerun bench` on the toy model; what it printed, and its exit code."""

    def run(*flags: str):
        shared = [
            "--model",
            "toy:0",
            "--planner",
            "fixed",
            "--threads",
            "1",
            "--categories",
            "humaneval",
            "--data",
            str(data),
        ]
        return CliRunner().invoke(command, [*shared, "--max-tokens", "12", "--repeats", "2", *flags])

    return run


@pytest.fixture
def last_line():
    def parse(result):
        assert result.stdout, result.output
        return json.loads(result.stdout.splitlines()[-1])

    return parse
