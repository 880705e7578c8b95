"""What an adapter hands over: a decoder's frozen config, and where its weights are in the checkpoint.

Does not: read weights.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import ModelError
from forerun.layers import rope
from forerun.layers.mlp import ACTIVATIONS

SIZE_MAX = 2**31
LAYERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """A dense decoder. Defaults are Llama's."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    context_length: int
    ropes: tuple[rope.Rope | None, ...]  # per layer; None: no rotation
    windows: tuple[int | None, ...]  # per layer: positions seen, a row's own included; None: all
    eps: float = 1e-6
    norm: str = "rms"  # or "layer"
    norm_bias: bool = False
    norm_plus_one: bool = False  # gains are stored as w and mean 1 + w (Gemma)
    pre_norm: bool = True
    post_norm: bool = False
    parallel: bool = False  # attention and feed-forward read the same input
    shared_norm: bool = False  # ... and the same norm of it
    qk_norm: str = ""  # "head": one gain per dimension; "heads": one per head and dimension; "full": over all heads
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    tied: bool = False
    learned_positions: bool = False
    attention_scale: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Names:
    """Weight names; `{}` stands for the layer. Defaults are Llama's, and "" means that there is no such weight."""

    embed: str = "model.embed_tokens"
    positions: str = ""
    head: str = "lm_head"
    final_norm: str = "model.norm"
    layer: str = "model.layers.{}."
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str = ""  # one weight for the three
    o: str = "self_attn.o_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: str = ""  # one weight for the two
    down: str = "mlp.down_proj"
    attention_norm: str = "input_layernorm"
    attention_post_norm: str = ""
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = ""
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    qkv_per_head: bool = False  # rows of `qkv` are [heads, 3, dim], not [3, heads, dim]
    transposed: bool = False  # weights of layers are stored [in, out]
    prefixes: tuple[tuple[str, str], ...] = ()  # (what a checkpoint may write, what it means)
    ignored: str = r"rotary_emb\.inv_freq$"  # a pattern of tensors that are not weights of this decoder


@dataclass(frozen=True, slots=True)
class Recipe:
    """A decoder's config and its weight names."""

    config: TransformerConfig
    names: Names = Names()


class Settings:
    """A config.json; every value is checked as it is read, and a wrong one is named."""

    def __init__(self, values: Mapping[str, Any], place: str | Path) -> None:
        self.values, self.place = values, place

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def size(self, key: str, default: int | None = None, most: int = SIZE_MAX) -> int:
        """A positive whole number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self.wrong(key, value, f"a whole number from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(key, value, "a finite number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.number(key, default)
        if value <= 0:
            raise self.wrong(key, value, "a number above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:  # noqa: FBT001
        """true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return value

    def column(self, key: str, length: int) -> list[Any]:
        """A list with one entry per layer (or pair of dimensions)."""
        value = self._get(key, None)
        if not isinstance(value, list) or len(value) < length:
            raise self.wrong(key, value, f"a list of {length} entries")
        return value[:length]

    def part(self, key: str) -> "Settings":
        """A nested object; empty where there is none."""
        value = self.values.get(key)
        if value is None:
            return Settings({}, self.place)
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return Settings(value, self.place)

    def _get(self, key: str, default: Any) -> Any:  # noqa: ANN401
        value = self.values.get(key)
        return default if value is None else value

    def wrong(self, key: str, value: object, wanted: str) -> ModelError:
        got = "missing" if value is None else f"{value!r:.80}"
        return ModelError(f"{self.place}: {key!r} is {got}, but must be {wanted}; correct config.json.")


def shape_of(s: Settings, head_dim: int | None = None) -> dict[str, Any]:
    """The sizes that most families spell alike, as keywords of TransformerConfig."""
    hidden = s.size("hidden_size")
    heads = s.size("num_attention_heads")
    kv_heads = s.size("num_key_value_heads", heads)
    if "head_dim" not in s and head_dim is None and hidden % heads:
        raise s.wrong("num_attention_heads", heads, f"a divisor of hidden_size {hidden}")
    if heads % kv_heads:
        raise s.wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {heads}")
    dim = s.size("head_dim", head_dim or hidden // heads)
    layers = s.size("num_hidden_layers", most=LAYERS_MAX)
    return {
        "vocab_size": s.size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": dim,
        "ffn_size": s.size("intermediate_size"),
        "context_length": s.size("max_position_embeddings", 2048),
        "ropes": (rope_of(s, dim),) * layers,
        "windows": (None,) * layers,
        "attention_scale": dim**-0.5,
        "activation": activation_of(s, "hidden_act", "silu"),
        "tied": s.flag("tie_word_embeddings", default=False),
    }


def activation_of(s: Settings, key: str, default: str) -> str:
    name = s.text(key, default)
    if name not in ACTIVATIONS:
        raise s.wrong(key, name, f"one of {', '.join(sorted(ACTIVATIONS))}")
    return name


def windows_of(s: Settings, sliding: list[bool], default: int | None) -> tuple[int | None, ...]:
    """The window of every layer: of those that `layer_types` names, else of those that the family lets slide."""
    layers = len(sliding)
    window = s.size("sliding_window") if "sliding_window" in s else default
    if window is None or ("sliding_window" in s.values and "sliding_window" not in s):  # null: no window
        return (None,) * layers
    if "layer_types" in s:
        sliding = [kind == "sliding_attention" for kind in s.column("layer_types", layers)]
    return tuple(window if slides else None for slides in sliding)


def upper_windows(s: Settings, layers: int) -> tuple[int | None, ...]:
    """Windows from layer `max_window_layers` on, where they are switched on (Qwen)."""
    if not s.flag("use_sliding_window", default=False):
        return (None,) * layers
    first = s.number("max_window_layers", 28)
    return windows_of(s, [layer >= first for layer in range(layers)], default=4096)


def rope_of(s: Settings, dim: int, partial: float = 1.0, theta: float = 10000.0, kind: str = "") -> rope.Rope:
    """The rotation that config.json asks for: `rope_parameters` (of layer type `kind`), or the older `rope_scaling`."""
    spec = s.part("rope_parameters" if "rope_parameters" in s else "rope_scaling")
    if kind and isinstance(spec.values.get(kind), dict):
        spec = spec.part(kind)
    theta = spec.positive("rope_theta", s.positive("rope_theta", s.positive("rotary_emb_base", theta)))
    older = s.number("partial_rotary_factor", s.number("rotary_pct", partial))
    turning = int(dim * spec.number("partial_rotary_factor", older))
    if not 0 < turning <= dim or turning % 2:
        raise s.wrong("partial_rotary_factor", turning / dim, f"such that an even part of head_dim {dim} turns")
    return _stretched(s, spec, turning, theta)


def _stretched(s: Settings, spec: Settings, dim: int, theta: float) -> rope.Rope:
    name = spec.text("rope_type", spec.text("type", "default"))
    context = s.size("max_position_embeddings", 2048)
    original = spec.size("original_max_position_embeddings", s.size("original_max_position_embeddings", context))
    optional = {key: spec.number(key) for key in ("mscale", "mscale_all_dim", "attention_factor") if key in spec}
    if name == "default":
        return rope.default(dim, theta)
    if name == "linear":
        return rope.linear(dim, theta, spec.positive("factor"))
    if name == "llama3":
        low, high = spec.positive("low_freq_factor"), spec.positive("high_freq_factor")
        return rope.Llama3(spec.positive("factor"), low, high, original).rope(dim, theta)
    if name == "yarn":
        fast, slow = spec.positive("beta_fast", 32.0), spec.positive("beta_slow", 1.0)
        factor = spec.positive("factor", context / original)
        return rope.Yarn(factor, original, fast, slow, truncate=spec.flag("truncate", default=True), **optional).rope(
            dim, theta
        )
    if name in {"longrope", "su"}:
        short, long = (tuple(map(float, spec.column(key, dim // 2))) for key in ("short_factor", "long_factor"))
        factor = spec.positive("factor", context / original)
        return rope.LongRope(short, long, factor, original, optional.get("attention_factor")).rope(dim, theta)
    raise s.wrong("rope_type", name, "one of default, linear, llama3, yarn, longrope")
