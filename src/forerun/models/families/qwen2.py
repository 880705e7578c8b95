"""Qwen 2 and 2.5 (2407.10671): biases on queries, keys and values; a window in the upper layers if asked for."""

from forerun.models.recipe import Recipe, Settings, TransformerConfig, shape_of, upper_windows


def adapt(s: Settings) -> Recipe:
    shape = shape_of(s)
    return Recipe(
        TransformerConfig(
            **{**shape, "windows": upper_windows(s, shape["num_layers"])},
            eps=s.positive("rms_norm_eps", 1e-6),
            qkv_bias=True,
        )
    )
