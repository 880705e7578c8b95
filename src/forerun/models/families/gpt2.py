"""GPT-2 (Radford et al. 2019): learned positions, layer norms, biases, weights stored the other way round."""

from forerun.models.recipe import LAYERS_MAX, Names, Recipe, Settings, TransformerConfig, activation_of

NAMES = Names(
    embed="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv="attn.c_attn",
    o="attn.c_proj",
    up="mlp.c_fc",
    down="mlp.c_proj",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    transposed=True,
    prefixes=tuple((part, f"transformer.{part}") for part in ("h.", "wte.", "wpe.", "ln_f.")),
    ignored=r"\.attn\.(masked_)?bias$",
)


def adapt(s: Settings) -> Recipe:
    hidden, heads = s.size("n_embd", 768), s.size("n_head", 12)
    layers = s.size("n_layer", 12, most=LAYERS_MAX)
    if hidden % heads:
        raise s.wrong("n_head", heads, f"a divisor of n_embd {hidden}")
    if s.flag("scale_attn_by_inverse_layer_idx", default=False):
        raise s.wrong("scale_attn_by_inverse_layer_idx", True, "false")  # noqa: FBT003
    config = TransformerConfig(
        vocab_size=s.size("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=s.size("n_inner", 4 * hidden),
        context_length=s.size("n_positions", s.size("n_ctx", 1024)),
        ropes=(None,) * layers,
        windows=(None,) * layers,
        eps=s.positive("layer_norm_epsilon", 1e-5),
        norm="layer",
        norm_bias=True,
        activation=activation_of(s, "activation_function", "gelu_new"),
        gated=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tied=s.flag("tie_word_embeddings", default=True),
        learned_positions=True,
        attention_scale=(hidden // heads) ** -0.5 if s.flag("scale_attn_weights", default=True) else 1.0,
    )
    return Recipe(config, NAMES)
