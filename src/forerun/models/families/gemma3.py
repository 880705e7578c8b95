"""Gemma 3 (2503.19786), text: five layers with a window and a rotation of their own, then one without.

Does not: see images; of a checkpoint with a vision tower the text part is read.
"""

from dataclasses import replace

from forerun.layers import rope
from forerun.models.families import gemma2
from forerun.models.recipe import Recipe, Settings, TransformerConfig, rope_of, windows_of

NAMES = replace(
    gemma2.NAMES,
    prefixes=(
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ),
    ignored=r"^(model\.)?(vision_tower|multi_modal_projector)\.|rotary_emb\.inv_freq$",
)
VISION_VOCAB = 262208  # of the checkpoints with a vision tower, whose config.json may leave it out


def adapt(s: Settings) -> Recipe:
    if "text_config" in s:
        text = s.part("text_config")
        defaults = {"vocab_size": VISION_VOCAB, "num_attention_heads": 8, "num_key_value_heads": 4}
        s = Settings({**defaults, "max_position_embeddings": 131072, **text.values}, s.place)
    shape = gemma2.common(s)
    layers = shape["num_layers"]
    period = s.size("sliding_window_pattern", s.size("_sliding_window_pattern", 6))
    sliding = [(layer + 1) % period != 0 for layer in range(layers)]
    kinds = s.column("layer_types", layers) if "layer_types" in s else None
    shape["windows"] = windows_of(s, sliding, default=4096)
    if kinds is not None:
        sliding = [kind == "sliding_attention" for kind in kinds]
    dim = shape["head_dim"]
    local, far = _ropes(s, dim)
    shape["ropes"] = tuple(local if slides else far for slides in sliding)
    caps = gemma2.cap_of(s, "attn_logit_softcapping", None), gemma2.cap_of(s, "final_logit_softcapping", None)
    config = TransformerConfig(**shape, qk_norm="head", attention_cap=caps[0], logit_cap=caps[1])
    return Recipe(config, NAMES)


def _ropes(s: Settings, dim: int) -> tuple[rope.Rope, rope.Rope]:
    """The rotations of layers with a window and of those without."""
    if "rope_parameters" in s:
        local = rope_of(s, dim, theta=1e4, kind="sliding_attention")
        return local, rope_of(s, dim, theta=1e6, kind="full_attention")
    return rope.default(dim, s.positive("rope_local_base_freq", 1e4)), rope_of(s, dim, theta=1e6)
