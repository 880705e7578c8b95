"""Mistral (2310.06825): Llama's shape with a sliding window in every layer."""

from forerun.models.recipe import Recipe, Settings, TransformerConfig, shape_of, windows_of


def adapt(s: Settings) -> Recipe:
    shape = shape_of(s)
    windows = windows_of(s, [True] * shape["num_layers"], default=4096)
    return Recipe(TransformerConfig(**{**shape, "windows": windows}, eps=s.positive("rms_norm_eps", 1e-6)))
