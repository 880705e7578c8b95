"""Gemma 2 (2408.00118): norms before and after each part, soft caps, every other layer with a window."""

from typing import Any

from forerun.models.recipe import Names, Recipe, Settings, TransformerConfig, activation_of, shape_of, windows_of

NAMES = Names(
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def common(s: Settings) -> dict[str, Any]:
    """What Gemma 2 and 3 share, as keywords of TransformerConfig."""
    shape = shape_of(s, head_dim=256)
    bias = s.flag("attention_bias", default=False)
    if s.flag("use_bidirectional_attention", default=False):
        raise s.wrong("use_bidirectional_attention", True, "false, as for generating text")  # noqa: FBT003
    return shape | {
        "eps": s.positive("rms_norm_eps", 1e-6),
        "norm_plus_one": True,
        "post_norm": True,
        "activation": activation_of(s, "hidden_activation", "gelu_pytorch_tanh"),
        "qkv_bias": bias,
        "o_bias": bias,
        "tied": s.flag("tie_word_embeddings", default=True),
        "attention_scale": s.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        "embed_scale": shape["hidden_size"] ** 0.5,
    }


def cap_of(s: Settings, key: str, default: float | None) -> float | None:
    """A soft cap; null means none, a missing key the family's own."""
    return s.positive(key) if key in s else None if key in s.values else default


def adapt(s: Settings) -> Recipe:
    shape = common(s)
    sliding = [layer % 2 == 0 for layer in range(shape["num_layers"])]
    shape["windows"] = windows_of(s, sliding, default=4096)
    caps = cap_of(s, "attn_logit_softcapping", 50.0), cap_of(s, "final_logit_softcapping", 30.0)
    return Recipe(TransformerConfig(**shape, attention_cap=caps[0], logit_cap=caps[1]), NAMES)
