"""OLMo 2 (2501.00656): norms only after each part, and over all heads of queries and of keys."""

from forerun.models.recipe import Names, Recipe, Settings, TransformerConfig, shape_of

NAMES = Names(attention_post_norm="post_attention_layernorm", mlp_post_norm="post_feedforward_layernorm")


def adapt(s: Settings) -> Recipe:
    bias = s.flag("attention_bias", default=False)
    config = TransformerConfig(
        **shape_of(s),
        eps=s.positive("rms_norm_eps", 1e-5),
        pre_norm=False,
        post_norm=True,
        qk_norm="full",
        qkv_bias=bias,
        o_bias=bias,
    )
    return Recipe(config, NAMES)
