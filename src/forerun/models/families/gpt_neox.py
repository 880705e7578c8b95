"""GPT-NeoX and Pythia (2204.06745, 2304.01373): parallel residual, layer norms, a quarter of each head turns."""

from forerun.models.recipe import Names, Recipe, Settings, TransformerConfig, activation_of, rope_of, shape_of

NAMES = Names(
    embed="gpt_neox.embed_in",
    head="embed_out",
    final_norm="gpt_neox.final_layer_norm",
    layer="gpt_neox.layers.{}.",
    qkv="attention.query_key_value",
    qkv_per_head=True,
    o="attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    ignored=r"\.attention\.(masked_)?bias$|rotary_emb\.inv_freq$",
)


def adapt(s: Settings) -> Recipe:
    shape = shape_of(s)
    shape["ropes"] = (rope_of(s, shape["head_dim"], partial=0.25),) * shape["num_layers"]
    shape["activation"] = activation_of(s, "hidden_act", "gelu")
    bias = s.flag("attention_bias", default=True)
    config = TransformerConfig(
        **shape,
        eps=s.positive("layer_norm_eps", 1e-5),
        norm="layer",
        norm_bias=True,
        parallel=s.flag("use_parallel_residual", default=True),
        gated=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
    )
    return Recipe(config, NAMES)
