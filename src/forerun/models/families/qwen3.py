"""Qwen 3, dense (2505.09388): every head of queries and keys is normed."""

from forerun.models.recipe import Recipe, Settings, TransformerConfig, shape_of, upper_windows


def adapt(s: Settings) -> Recipe:
    shape = shape_of(s, head_dim=128)
    bias = s.flag("attention_bias", default=False)
    return Recipe(
        TransformerConfig(
            **{**shape, "windows": upper_windows(s, shape["num_layers"])},
            eps=s.positive("rms_norm_eps", 1e-6),
            qk_norm="head",
            qkv_bias=bias,
            o_bias=bias,
        )
    )
