"""Enlargement keeps every bit of the outputs, and the size is what was asked for."""

import pytest
import torch
import transformers

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack
from forerun.errors import ConfigError
from forerun.models.inflate import inflate
from forerun.models.load import load_model
from forerun.types import Work

SMALL = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
CASES = {
    "llama": {"tie_word_embeddings": True, "num_key_value_heads": 2},
    "gemma2": {"head_dim": 16, "sliding_window": 4, "pad_token_id": 0, "num_key_value_heads": 2},
    "olmo2": {"pad_token_id": 0},
    "gpt_neox": {"hidden_size": 64},
}


def run(model):
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, 32)
    slot, _ = cache.open(())
    for start in (0, 9):
        tokens = tuple(range(start, start + 9))
        out = model.forward(
            pack([Work(slot, tokens, logits=tuple(range(9)), hidden=(0, -1))], cache, torch.device("cpu")), cache
        )
        cache.advance(pack([Work(slot, tokens)], cache, torch.device("cpu")).segments)
        cache.keep(slot, tokens, range(9))
    return out, cache


@pytest.mark.parametrize("family", CASES)
def test_same_bits_at_the_wanted_size(tmp_path, family):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SMALL | CASES[family])
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    for weight in theirs.parameters():
        weight.data = torch.randn_like(weight) * 0.3
    theirs.save_pretrained(tmp_path)
    small = load_model(tmp_path)
    big = inflate(small, 3_000_000)
    (before, _), (after, cache) = run(small), run(big)
    assert torch.equal(before.logits, after.logits)
    assert all(torch.equal(before.hidden[at], after.hidden[at]) for at in (0, -1))
    assert 2_700_000 < big.numel < 3_300_000
    assert 2 * big.numel <= big.info.weight_bytes <= 4 * big.numel * 1.1
    assert (big.info.num_layers, cache.num_layers) == (24, 24)
    assert cache.snapshot(0)[23][0].abs().max() > 0  # the added layers do their work, they only do not say so


def test_a_model_cannot_shrink(tmp_path):
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has .* parameters already"):
        inflate(load_model(tmp_path), 1000)
