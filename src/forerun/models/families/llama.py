"""Llama 1 to 3 (2302.13971, 2407.21783), and what copies its shape."""

from forerun.models.recipe import Recipe, Settings, TransformerConfig, shape_of


def adapt(s: Settings) -> Recipe:
    bias = s.flag("attention_bias", default=False)
    return Recipe(
        TransformerConfig(
            **shape_of(s),
            eps=s.positive("rms_norm_eps", 1e-6),
            qkv_bias=bias,
            o_bias=bias,
            mlp_bias=s.flag("mlp_bias", default=False),
        )
    )
