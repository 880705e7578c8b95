"""One dense decoder for every family (1706.03762), driven by a frozen config.

Rows of all requests go through the linear parts together; attention runs per request over what the cache returns, or
in one call where the pass has a grid. Does not: know a family's name, or change after it was built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from forerun.caches.contract import Cache
from forerun.layers.attention import View, attend, views
from forerun.layers.linear import Linear, linear, linear_of_half
from forerun.layers.mlp import Mlp
from forerun.layers.norm import Norm
from forerun.layers.padded import Padded, distances
from forerun.layers.rope import Rope, Rotation, rotate
from forerun.models.contract import ModelInfo, Resident
from forerun.models.inflate import Growing, Noise
from forerun.models.recipe import TransformerConfig
from forerun.types import Pass, PassOutput
from forerun.weights.load import trim

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys and values [rows, heads, dim]


class Attention(Protocol):
    """Stores the keys and values of a layer, and lets every row attend to what it sees: [rows, heads * dim]."""

    def __call__(self, layer: int, heads: Heads, scale: float, cap: float | None) -> torch.Tensor: ...


class Step(NamedTuple):
    """What the layers of one kind share within a pass."""

    attend: Attention
    factors: torch.Tensor | None  # complex [rows, 1, pairs]


class Ragged:
    """Attention request by request, over what the cache returns for each."""

    def __init__(self, work: Pass, cache: Cache, views: list[View]) -> None:
        self.work, self.cache, self.views = work, cache, views

    def __call__(self, layer: int, heads: Heads, scale: float, cap: float | None) -> torch.Tensor:
        q, k, v = heads
        self.cache.write(layer, self.work, k, v)
        if len(self.views) == 1:
            view = self.views[0]
            return attend(q, *self.cache.read(layer, view.segment), view, scale, cap)
        outs = []
        for view in self.views:
            s = view.segment
            rows = q[s.start : s.start + s.rows]
            outs.append(attend(rows, *self.cache.read(layer, s), view, scale, cap))
        return torch.cat(outs)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, ready to run. A norm that the family has not is None."""

    qkv: Linear
    o: Linear
    mlp: Mlp
    attention_norm: Norm | None
    attention_post_norm: Norm | None
    mlp_norm: Norm | None  # None with `parallel`: the attention's norm is used
    mlp_post_norm: Norm | None
    qk_norm: Norm | None  # of [rows, heads + kv_heads, dim]
    full_norms: tuple[Norm, Norm] | None  # of queries [rows, heads * dim] and keys [rows, kv_heads * dim]
    rope: Rope | None
    window: int | None


class Layer:
    """One decoder layer."""

    def __init__(self, config: TransformerConfig, index: int, weights: LayerWeights) -> None:
        self.config, self.index, self.weights = config, index, weights
        self.parts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.turning = config.num_heads + config.num_kv_heads
        self.total = self.turning + config.num_kv_heads
        self.scale, self.cap = config.attention_scale, config.attention_cap
        self.plain = config.pre_norm and not (config.post_norm or config.parallel or config.residual_scale != 1)

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        w = self.weights
        if self.plain and w.attention_norm is not None and w.mlp_norm is not None:
            x = w.o.onto(self.attention(w.attention_norm(x), step), x)
            return w.mlp.down.onto(w.mlp.inner(w.mlp_norm(x)), x)
        if self.config.parallel:
            return self._parallel(x, step)
        normed = w.attention_norm(x) if w.attention_norm is not None else x
        x = self._add(x, w.o(self.attention(normed, step)), w.attention_post_norm)
        normed = w.mlp_norm(x) if w.mlp_norm is not None else x
        return self._add(x, w.mlp.down(w.mlp.inner(normed)), w.mlp_post_norm)

    def _parallel(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        w = self.weights
        normed = w.attention_norm(x) if w.attention_norm is not None else x
        again = w.mlp_norm(x) if w.mlp_norm is not None else normed
        x = w.o.onto(self.attention(normed, step), x)
        return w.mlp.down.onto(w.mlp.inner(again), x)

    def _add(self, x: torch.Tensor, change: torch.Tensor, post: Norm | None) -> torch.Tensor:
        if post is not None:
            change = post(change)
        return torch.add(x, change, alpha=self.config.residual_scale)

    def attention(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Everything between the norm and the output projection: [rows, hidden] -> [rows, heads * dim]."""
        return step.attend(self.index, self._heads(self.weights.qkv(x), step.factors), self.scale, self.cap)

    def _heads(self, qkv: torch.Tensor, factors: torch.Tensor | None) -> Heads:
        """Queries, keys and values, normed and turned."""
        w = self.weights
        heads = qkv.view(qkv.shape[0], self.total, -1)
        if w.qk_norm is None and w.full_norms is None:
            if factors is not None:
                rotate(heads.narrow(1, 0, self.turning), factors)
            q, k, v = heads.split(self.parts, 1)
            return q, k, v
        turning = self._normed(heads.narrow(1, 0, self.turning))
        if factors is not None:
            rotate(turning, factors)
        q, k = turning.split(self.parts[:2], 1)
        return q, k, heads.narrow(1, self.turning, self.parts[2])

    def _normed(self, turning: torch.Tensor) -> torch.Tensor:
        w = self.weights
        if w.qk_norm is not None:
            return w.qk_norm(turning)
        q, k = turning.split(self.parts[:2], 1)
        pairs = zip(w.full_norms or (), (q, k), strict=True)
        return torch.cat([norm(part.flatten(1)).view(part.shape) for norm, part in pairs], 1)


def parts(layer: Layer) -> tuple[Linear, ...]:
    """The matrices of a layer."""
    w = layer.weights
    return w.qkv, w.o, w.mlp.up, w.mlp.down


@dataclass(frozen=True, slots=True)
class Ends:
    """What comes before the first layer and after the last."""

    embed: torch.Tensor  # [vocab, hidden], in the checkpoint's own precision
    positions: torch.Tensor | None  # [context, hidden]
    final_norm: Norm
    head: Linear


class Transformer(Growing):
    """A dense decoder."""

    def __init__(self, config: TransformerConfig, info: ModelInfo, ends: Ends, layers: Sequence[Layer]) -> None:
        self.config, self.info, self.ends, self.layers = config, info, ends, tuple(layers)
        self.numel = ends.head.numel + sum(part.numel for layer in layers for part in parts(layer))
        self.widths = tuple(layer.weights.mlp.down.numel // config.hidden_size for layer in layers)
        self.dtype = info.layout.dtype
        device = info.layout.device
        self._rotations = {
            rope: Rotation(rope, self.dtype, device) for rope in {layer.weights.rope for layer in layers} if rope
        }
        self._kinds = [(layer.weights.rope, layer.weights.window) for layer in layers]
        self._embed_scale = torch.tensor(config.embed_scale, dtype=self.dtype, device=device)

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        with torch.inference_mode():
            return self._forward(work, cache)

    def grow(self, config: TransformerConfig, info: ModelInfo, width: int, noise: Noise) -> "Transformer":
        like, hidden, dim = self.layers[-1].weights, config.hidden_size, config.head_dim
        q, kv = config.num_heads * dim, config.num_kv_heads * dim
        extra: list[Layer] = []
        for index in range(self.info.num_layers, config.num_layers):
            up = self._linear(noise(width * (2 if config.gated else 1), hidden))
            mlp = Mlp(up, self._linear(noise(hidden, width).zero_()), config.activation, gated=config.gated)
            qkv, o = self._linear(noise(q + 2 * kv, hidden)), self._linear(noise(hidden, q).zero_())
            extra.append(Layer(config, index, replace(like, qkv=qkv, o=o, mlp=mlp, window=None)))
            trim()
        grown = sum(part.nbytes for layer in extra for part in parts(layer))
        info = replace(info, weight_bytes=info.weight_bytes + grown)
        return Transformer(config, info, self.ends, [*self.layers, *extra])

    def resident(self, cache: Cache) -> Resident | None:
        from forerun.models.resident import resident  # it reads this module

        return resident(self, cache)

    def _linear(self, half: torch.Tensor) -> Linear:
        return linear_of_half(half) if self.dtype == torch.float32 else linear(half.to(self.dtype))

    def _forward(self, work: Pass, cache: Cache) -> PassOutput:
        x = self._embed(work)
        hidden: dict[int, torch.Tensor] = {}
        steps: dict[tuple[Rope | None, int | None], Step] = {}
        for index in work.plan.layers if work.plan is not None else range(len(self.layers)):
            kind = self._kinds[index]
            step = steps.get(kind)
            if step is None:
                step = steps[kind] = self._step(work, cache, kind)
            x = self.layers[index](x, step)
            if index in work.hidden:
                hidden[index] = x
        if -1 in work.hidden:
            hidden[-1] = x
        return PassOutput(self._logits(x, work), hidden)

    def _embed(self, work: Pass) -> torch.Tensor:
        x = F.embedding(work.tokens, self.ends.embed)
        if x.dtype != self.dtype:
            x = x.to(self.dtype)
        if self.config.embed_scale != 1:
            x = x * self._embed_scale
        if self.ends.positions is not None:
            x = x + F.embedding(work.positions, self.ends.positions)
        return x

    def _step(self, work: Pass, cache: Cache, kind: tuple[Rope | None, int | None]) -> Step:
        rope, window = kind
        factors = self._rotations[rope].at(work.positions) if rope is not None else None
        if work.grid is None:
            return Step(Ragged(work, cache, views(work, window, self.dtype)), factors)
        behind = distances(work.grid, work.positions)
        return Step(Padded(work.grid, behind, window, cache.rows), factors)

    def _logits(self, x: torch.Tensor, work: Pass) -> torch.Tensor:
        if work.plan is not None and not work.plan.logits:
            return x.new_empty(0, self.config.vocab_size)
        if work.logits is not None:
            x = x.index_select(0, work.logits)
        logits = self.ends.head(self.ends.final_norm(x))
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        if self.config.logit_cap is not None:
            logits = torch.tanh(logits / self.config.logit_cap) * self.config.logit_cap
        return logits
