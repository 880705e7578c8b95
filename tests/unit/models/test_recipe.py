"""Config files as published, in spellings that today's transformers no longer writes."""

import pytest

from forerun.models.families import FAMILIES
from forerun.models.recipe import Settings

BASE = {
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def config(family, **changes):
    return FAMILIES[family](Settings(BASE | changes, "config.json")).config


def test_pythia():
    found = config("gpt_neox", rotary_pct=0.25, rotary_emb_base=500, hidden_act="gelu")
    assert found.ropes[0].dim == 16
    assert found.ropes[0].frequencies[1] == pytest.approx(500 ** (-2 / 16))
    assert (found.parallel, found.tied, found.qkv_bias) == (True, False, True)


def test_stablelm_turns_a_quarter_unless_told():
    assert config("stablelm").ropes[0].dim == 16
    assert config("stablelm", partial_rotary_factor=0.5).ropes[0].dim == 32


def test_gemma3_with_two_thetas_and_a_pattern():
    found = config("gemma3_text", head_dim=32, rope_theta=1e6, rope_local_base_freq=1e4, sliding_window=8)
    assert [window is None for window in found.windows] == [False] * 5 + [True]
    assert found.ropes[0].frequencies[1] == pytest.approx(1e4 ** (-2 / 32))
    assert found.ropes[5].frequencies[1] == pytest.approx(1e6 ** (-2 / 32))
    scaled = config("gemma3_text", head_dim=32, rope_theta=1e6, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert scaled.ropes[5].frequencies[0] == pytest.approx(1 / 8)
    assert scaled.ropes[0].frequencies[0] == 1


@pytest.mark.parametrize("name", ["su", "yarn", "longrope"])
def test_phi3_and_its_names_for_longrope(name):
    factors = {"short_factor": [1.5] * 32, "long_factor": [3.0] * 32, "type": name}
    found = config("phi3", rope_scaling=factors, original_max_position_embeddings=128)
    assert (found.ropes[0].frequencies[0], found.ropes[0].border) == (pytest.approx(1 / 1.5), 128)
    assert found.ropes[0].beyond[0] == pytest.approx(1 / 3)


def test_windows():
    assert config("mistral", sliding_window=None).windows == (None,) * 6
    assert config("mistral").windows == (4096,) * 6
    assert config("qwen2", sliding_window=64, use_sliding_window=False).windows == (None,) * 6
    assert (
        config("qwen2", sliding_window=64, use_sliding_window=True, max_window_layers=4).windows
        == (None,) * 4 + (64,) * 2
    )
    assert config("gemma2", sliding_window=64).windows == (64, None) * 3


def test_defaults_of_a_family():
    assert config("qwen3").head_dim == 128
    assert config("gemma2", attn_logit_softcapping=None).attention_cap is None
    assert (config("gemma2").attention_cap, config("gemma2").logit_cap) == (50.0, 30.0)
    assert [rope is None for rope in config("smollm3").ropes] == [False, False, False, True, False, False]
    assert config("smollm3").tied
    assert (config("gpt2").activation, config("gpt2").ffn_size, config("gpt2").tied) == ("gelu_new", 3072, True)
    assert not config("llama").tied
