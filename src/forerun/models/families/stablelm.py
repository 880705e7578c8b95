"""StableLM 2 (2402.17834): layer norms, a quarter of each head turns; normed heads, parallel residual if asked."""

from forerun.models.recipe import Names, Recipe, Settings, TransformerConfig, rope_of, shape_of

NAMES = Names(q_norm="self_attn.q_layernorm", k_norm="self_attn.k_layernorm")


def adapt(s: Settings) -> Recipe:
    shape = shape_of(s)
    shape["ropes"] = (rope_of(s, shape["head_dim"], partial=0.25),) * shape["num_layers"]
    parallel = s.flag("use_parallel_residual", default=False)
    config = TransformerConfig(
        **shape,
        eps=s.positive("layer_norm_eps", 1e-5),
        norm="layer",
        norm_bias=True,
        parallel=parallel,
        shared_norm=parallel,
        qk_norm="heads" if s.flag("qk_layernorm", default=False) else "",
        qkv_bias=s.flag("use_qkv_bias", default=False),
    )
    return Recipe(config, NAMES)
