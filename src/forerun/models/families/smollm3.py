"""SmolLM 3: Llama's shape, where every fourth layer has no rotation."""

from forerun.models.recipe import Recipe, Settings, TransformerConfig, rope_of, shape_of, windows_of


def adapt(s: Settings) -> Recipe:
    shape = shape_of(s)
    layers = shape["num_layers"]
    period = s.size("no_rope_layer_interval", 4)
    turning = [(layer + 1) % period != 0 for layer in range(layers)]
    if "no_rope_layers" in s:  # 1 where a layer does turn
        turning = [bool(entry) for entry in s.column("no_rope_layers", layers)]
    rope = rope_of(s, shape["head_dim"], theta=2e6)
    windows: tuple[int | None, ...] = (None,) * layers
    if s.flag("use_sliding_window", default=False):
        windows = windows_of(s, [not turns for turns in turning], default=None)
    bias = s.flag("attention_bias", default=False)
    shape |= {"ropes": tuple(rope if turns else None for turns in turning), "windows": windows}
    shape["tied"] = s.flag("tie_word_embeddings", default=True)
    return Recipe(
        TransformerConfig(
            **shape,
            eps=s.positive("rms_norm_eps", 1e-6),
            qkv_bias=bias,
            o_bias=bias,
            mlp_bias=s.flag("mlp_bias", default=False),
        )
    )
