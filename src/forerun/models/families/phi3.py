"""Phi-3 and 3.5 (2404.14219): one weight for queries, keys and values, one for gate and up; longrope."""

from forerun.models.recipe import Names, Recipe, Settings, TransformerConfig, shape_of, windows_of

NAMES = Names(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")
STRETCHED = ("su", "yarn")  # what early checkpoints call longrope


def adapt(s: Settings) -> Recipe:
    for key in ("rope_scaling", "rope_parameters"):
        spec = s.part(key).values
        if spec.get("rope_type", spec.get("type")) in STRETCHED:
            s = Settings({**s.values, key: {**spec, "rope_type": "longrope"}}, s.place)
    shape = shape_of(s)
    windows = windows_of(s, [True] * shape["num_layers"], default=None)
    config = TransformerConfig(**{**shape, "windows": windows}, eps=s.positive("rms_norm_eps", 1e-5))
    return Recipe(config, NAMES)
