"""The dense decoder in compiled code: one call is a whole pass, from tokens to logits, on the CPU in float32.

Weights stay in the checkpoint's own precision and are widened inside the multiplication; a row's logits are the same to
the bit whatever else is in the pass. Does not: run families that norm all heads together or heads by layer norm.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch

from forerun.caches.contract import Cache
from forerun.kernels import bends, cuts, native
from forerun.layers.rope import Rope
from forerun.models.assemble import Assembler, Reader
from forerun.models.contract import ModelInfo
from forerun.models.inflate import Growing, Noise
from forerun.models.recipe import Recipe, TransformerConfig
from forerun.types import Flat, Grown, Lot, Pass, PassOutput, Peaks, Segment, Sprout
from forerun.weights.load import Tensors, trim

KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
INT8, INT4 = WHOLE = 3, 4
STORED = {torch.float32: 0, torch.bfloat16: 2, torch.int8: INT8}  # what keys and values are kept in
NEAREST, LEAST_SQUARES = 0, 1  # scales of whole numbers: by the largest weight, or by what rounding takes away
PACKED = {"bfloat16": KINDS[torch.bfloat16], "int8": INT8, "w8a8": INT8, "int4": INT4}  # what weights are rounded to
COARSE = ("bfloat16", "w8a8", "int4")  # precisions that round activations as much as weights, or to eight bits
HEADS = {INT4: INT8}  # what the head is rounded to where it is not as the layers are: it decides, and it embeds
CACHED = (torch.float32, torch.bfloat16)  # precisions in which keys and values go into and out of a cache
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_fast": 2, "gelu_pytorch_tanh": 2, "relu": 3}
TILE, HALF = 32, 16  # outputs of a tile; of a gated one, half are gates
HEAD_DIM_MAX = 1024
CHUNK = 4 << 20  # bytes of a stored weight that are in memory at a time
SHARED_FROM = 16 << 20  # bytes of weights from which a pass is shared among threads unless told otherwise,
SHARED_WORK = 16 << 20  # and weights times rows, where the model is smaller but there are threads of a larger one's
ALONE = 1 << 62  # rows, which no pass has


def threads_for(weight_bytes: int) -> int:
    """How many threads share a pass of few rows.

    A pass over a small model has hundreds of meetings of its threads and little to do between them; and a server's own
    event loop and its clients want a core as well.
    """
    return 1 if weight_bytes < SHARED_FROM else cores()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def team_of(threads: int) -> Any:  # noqa: ANN401 - the module's own type
    """The threads of every model whose passes so many share: two teams would want the same cores.

    A team is awake for a while behind a pass, a draft's as well. One per process, as no thread outlives a fork.
    """
    size = os.getpid(), threads
    team = _TEAMS.get(size)
    if team is None:
        module: Any = native.load()
        team = _TEAMS[size] = module.Team(threads)
    return team


def widest() -> int:
    """How many threads share the widest compiled passes of this process; 0: there are none."""
    return max((threads for process, threads in _TEAMS if process == os.getpid()), default=0)


_TEAMS = WeakValueDictionary[tuple[int, int], Any]()


def supports(config: TransformerConfig, info: ModelInfo) -> bool:
    """Whether the compiled passes exist here and cover this decoder."""
    plain = info.layout.device.type == "cpu" and info.layout.dtype in CACHED and native.load() is not None
    heads = config.qk_norm == "" or (config.qk_norm in {"head", "heads"} and config.norm == "rms")
    return plain and heads and config.head_dim <= HEAD_DIM_MAX


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one stored weight, and which outputs of the packed matrix they become."""

    name: str
    to: torch.Tensor


Vector = np.ndarray | None


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What a layer is made of."""

    qkv: Any  # here and below: packed matrices of the extension
    o: Any
    up: Any
    down: Any
    norms: list[Vector]  # gain and bias: before and after attention, before and after the feed-forward
    qk_gain: Vector


@dataclass(frozen=True, slots=True)
class EndParts:
    """What comes before the first layer and after the last."""

    embed: torch.Tensor | None  # None: the rows of the head
    positions: Vector
    norm: tuple[Vector, Vector]
    head: Any


class Parts(Protocol):
    """Where the parts of a decoder come from; they are asked for in this order, each once."""

    def layer(self, index: int) -> LayerParts: ...
    def ends(self) -> EndParts: ...


def rotated(rows: torch.Tensor) -> torch.Tensor:
    """Rows [count, inputs] as they are rounded to whole numbers: passes rotate activations alike."""
    turned = rows.to(torch.float32, copy=True).contiguous()
    module: Any = native.load()
    module.rotate(turned.data_ptr(), *turned.shape)
    return turned


def decoder(config: TransformerConfig, parts: Parts, arena: Any, *, exact: bool) -> Any:  # noqa: ANN401 - the extension's
    """A decoder of parts that lie in an arena; `exact`: activations keep more bits than weights have."""
    module: Any = native.load()
    sizes = [config.vocab_size, config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim]
    sizes += [config.norm == "layer", config.parallel, config.gated, ACTIVATIONS[config.activation]]
    sizes += [exact]
    numbers = [config.eps, config.attention_scale, config.attention_cap or 0.0, config.logit_cap or 0.0]
    numbers += [config.embed_scale, config.residual_scale, config.logit_scale]
    made = module.Decoder(module.isas()[0], [int(s) for s in sizes], numbers)
    ropes: list[Rope] = list(dict.fromkeys(rope for rope in config.ropes if rope is not None))
    for rope in ropes:
        made.rope(list(rope.frequencies), list(rope.beyond or ()), rope.scale, rope.border)
    for index, rope_of in enumerate(config.ropes):
        p = parts.layer(index)
        turn = ropes.index(rope_of) if rope_of is not None else -1
        made.layer(p.qkv, p.o, p.up, p.down, p.norms, p.qk_gain, turn, config.windows[index] or 0)
        trim()
    ends = parts.ends()
    address, kind = (0, 0) if ends.embed is None else (ends.embed.data_ptr(), KINDS[ends.embed.dtype])
    made.ends(ends.embed, address, kind, ends.positions, *ends.norm, ends.head)
    arena.settle()
    return made


Improve = Callable[[str, Any, torch.Tensor, np.ndarray], None]  # name of a weight, packed matrix, rows, their outputs


@dataclass(frozen=True, slots=True)
class Rounding:
    """How matrices are kept."""

    kind: int | None = None  # of the layers; None: as they are stored
    scales: int = NEAREST
    improve: Improve | None = None  # called for every stored weight once it is packed


class Packer:
    """Reads a checkpoint tensor by tensor straight into packed matrices."""

    def __init__(self, recipe: Recipe, reader: Reader, rounding: Rounding) -> None:
        self.config, self.names, self.reader = recipe.config, recipe.names, reader
        self.kind, self.rounding = rounding.kind, rounding
        self.parts = Assembler(recipe, reader)
        self.nbytes = 0
        module: Any = native.load()
        self._native, self.arena = module, module.Arena()

    def layer(self, index: int) -> LayerParts:
        config, names = self.config, self.names
        place = names.layer.format(index)
        norms = [names.attention_norm if config.pre_norm else "", names.attention_post_norm if config.post_norm else ""]
        norms += [names.mlp_norm if config.pre_norm and not config.shared_norm else ""]
        norms += [names.mlp_post_norm if config.post_norm else ""]
        return LayerParts(
            self._qkv(index, place),
            self._matrix(config.hidden_size, [self._rows(place + names.o, config.hidden_size)], bias=config.o_bias),
            self._up(place),
            self._matrix(
                config.hidden_size, [self._rows(place + names.down, config.hidden_size)], bias=config.mlp_bias
            ),
            [vector for name in norms for vector in self._norm(place + name if name else "")],
            self.parts.qk_gains(index, place).flatten().numpy() if config.qk_norm else None,
        )

    def _qkv(self, index: int, place: str) -> Any:  # noqa: ANN401
        config, names = self.config, self.names
        sizes = [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        total = sum(sizes)
        to = torch.empty(total, dtype=torch.int64)
        to[self.parts.ordered(index, torch.arange(total))] = torch.arange(total)
        if names.qkv:
            blocks = [Block(place + names.qkv, to)]
        else:
            rows = to.split(sizes)
            blocks = [Block(place + name, part) for name, part in zip((names.q, names.k, names.v), rows, strict=True)]
        return self._matrix(total, blocks, bias=config.qkv_bias)

    def _up(self, place: str) -> Any:  # noqa: ANN401
        config, names = self.config, self.names
        if not config.gated:
            return self._matrix(config.ffn_size, [self._rows(place + names.up, config.ffn_size)], bias=config.mlp_bias)
        rows = torch.arange(config.ffn_size)
        gate = rows // HALF * TILE + rows % HALF
        blocks = [Block(place + names.gate, gate), Block(place + names.up, gate + HALF)]
        if names.gate_up:
            blocks = [Block(place + names.gate_up, torch.cat([block.to for block in blocks]))]
        return self._matrix(-(-config.ffn_size // HALF) * TILE, blocks, bias=config.mlp_bias)

    def _rows(self, name: str, count: int) -> Block:
        return Block(name, torch.arange(count))

    def _matrix(self, outputs: int, blocks: list[Block], *, bias: bool, kind: int | None = None) -> Any:  # noqa: ANN401
        stored = [self.reader.raw(f"{block.name}.weight") for block in blocks]
        dtype = stored[0].dtype if len({t.dtype for t in stored}) == 1 and stored[0].dtype in KINDS else torch.float32
        dtype = torch.bfloat16 if self.kind == KINDS[torch.bfloat16] else dtype
        flip = self.names.transposed and not blocks[0].name.startswith((self.names.head, self.names.embed))
        kind = KINDS[dtype] if self.kind is None else kind or self.kind
        made = self._native.Packed(self.arena, kind, outputs, stored[0].shape[0 if flip else 1])
        for block, weight in zip(blocks, stored, strict=True):
            rows, to = weight.t() if flip else weight, block.to.numpy()
            step = len(to) if flip else max(1, CHUNK // (rows.shape[1] * dtype.itemsize))
            for first in range(0, len(to), step):
                part = rows[first : first + step]
                part = rotated(part) if kind in WHOLE else part.to(dtype).contiguous()
                made.fill(part.data_ptr(), KINDS[part.dtype], to[first : first + step], self.rounding.scales)
                self.reader.release(f"{block.name}.weight")
            if self.rounding.improve is not None:
                self.rounding.improve(block.name, made, rows, to)
            if bias:
                made.bias(self.reader.get(f"{block.name}.bias").numpy(), block.to.numpy())
        self.nbytes += made.nbytes
        return made

    def _norm(self, name: str) -> tuple[Vector, Vector]:
        if not name:
            return None, None
        gain = self.parts.gain(f"{name}.weight").numpy()
        return gain, self.reader.get(f"{name}.bias").numpy() if self.config.norm_bias else None

    def ends(self) -> EndParts:
        config, names = self.config, self.names
        embed = None if config.tied else self.reader.raw(f"{names.embed}.weight")
        if embed is not None and embed.dtype not in KINDS:
            embed = embed.float()
        positions = self.reader.optional(f"{names.positions}.weight", present=config.learned_positions)
        name = names.embed if config.tied else names.head
        rows, kind = [self._rows(name, config.vocab_size)], HEADS.get(self.kind or 0)
        head = self._matrix(config.vocab_size, rows, bias=config.head_bias, kind=kind)
        flat = positions.flatten().numpy() if positions is not None else None
        return EndParts(embed, flat, self._norm(names.final_norm), head)


class NativeTransformer(Growing):
    """A decoder whose passes are compiled."""

    follows = True

    def __init__(self, config: TransformerConfig, info: ModelInfo, decoder: Any, threads: int) -> None:  # noqa: ANN401
        self.config, self.info, self._threads = config, info, threads
        self.numel, self.widths = decoder.numel, tuple(decoder.widths)
        module: Any = native.load()
        self._native = module
        self._decoder, self._team = decoder, team_of(threads or threads_for(info.weight_bytes))
        self._sessions: WeakKeyDictionary[Cache, Any] = WeakKeyDictionary()

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        wanted = list(range(work.tokens.numel())) if work.logits is None else work.logits.tolist()
        numbers = work.tokens.tolist(), work.positions.tolist(), wanted
        return self.run(Flat(*numbers, work.segments, (), work.hidden, work.plan), cache)

    def run(self, flat: Flat, cache: Cache) -> PassOutput:
        session = self._sessions.get(cache) or self._begin(cache)
        rows, plan = len(flat.tokens), flat.plan
        count = len(flat.wanted) if plan is None or plan.logits else 0
        logits = torch.empty(count, self.info.vocab_size)
        hidden = self._hidden(flat) if flat.hidden else {}
        found = session.run(
            flat.tokens + flat.positions + flat.wanted,
            rows,
            *_segments(flat.segments, cache),
            logits.data_ptr(),
            count,
            plan.layers if plan is not None else None,
            [(at, out.data_ptr()) for at, out in hidden.items()],
            [_lot(row, lot) for row, lot in flat.lots],
        )
        if not flat.hidden:
            return PassOutput(logits, {}, Peaks(*found))
        order = list(plan.layers) if plan is not None else list(range(self.info.num_layers))
        return PassOutput(logits, {layer: hidden[_index(order, layer)] for layer in flat.hidden}, Peaks(*found))

    def follow(self, steps: Iterable[tuple[Flat, Sequence[int]]], cache: Cache) -> list[PassOutput]:
        session = self._sessions.get(cache) or self._begin(cache)
        numbers, passes, ends = list[int](), [], [0]
        shared, each = dict[int, torch.Tensor](), list[torch.Tensor]()  # by their number, which is most often the same
        for flat, sources in steps:
            rows, count = len(flat.tokens), len(flat.wanted)
            logits = shared.get(count)
            if logits is None or flat.lots:  # what was drawn is asked for its p
                logits = shared[count] = torch.empty(count, self.info.vocab_size)
            each.append(logits)
            where = len(numbers), rows, *_segments(flat.segments, cache)
            lots = [_lot(row, lot) for row, lot in flat.lots]
            passes.append((*where, logits.data_ptr(), count, lots, list(sources)))
            numbers += flat.tokens
            numbers += flat.positions
            numbers += flat.wanted
            ends.append(ends[-1] + count)
        found = session.follow(numbers, passes)
        parts = [[one and one[begin:end] for one in found] for begin, end in pairwise(ends)]
        return [PassOutput(logits, {}, Peaks(*part)) for logits, part in zip(each, parts, strict=True)]

    def follow_best(self, sprouts: Sequence[Sprout], cache: Cache) -> list[Grown]:
        session = self._sessions.get(cache) or self._begin(cache)
        return [Grown(*one) for one in session.grow(sprouts)]

    @cached_property
    def aside(self) -> bool:
        return int(self._team.size) == 1 < widest()

    def begin_best(self, sprouts: Sequence[Sprout], cache: Cache) -> Callable[[], list[Grown]]:
        session = self._sessions.get(cache) or self._begin(cache)
        session.begin(sprouts)
        return lambda: [Grown(*one) for one in session.end()]

    def _hidden(self, flat: Flat) -> dict[int, torch.Tensor]:
        """Room for the hidden states that are asked for, by place in the order of the layers that run."""
        order = list(flat.plan.layers) if flat.plan is not None else list(range(self.info.num_layers))
        return {_index(order, layer): torch.empty(len(flat.tokens), self.info.hidden_size) for layer in flat.hidden}

    def grow(self, config: TransformerConfig, info: ModelInfo, width: int, noise: Noise) -> "NativeTransformer":
        hidden, heads = config.hidden_size, config.num_heads + 2 * config.num_kv_heads
        out = config.num_heads * config.head_dim
        decoder, whole = self._decoder.copy(), self._decoder.kind in WHOLE
        kind = self._decoder.kind if whole else KINDS[torch.bfloat16]
        nbytes, arena = 0, self._native.Arena()
        for _ in range(self.info.num_layers, config.num_layers):
            up = (width * (1 + config.gated), hidden)
            shapes = ((heads * config.head_dim, hidden), (hidden, out), up, (hidden, width))
            made = [self._native.Packed(arena, kind, *shape) for shape in shapes]
            for matrix, shape, silent in zip(made, shapes, (False, True, False, True), strict=True):
                weight = (noise(*shape).zero_() if silent else noise(*shape)).bfloat16()  # as random if rotated
                matrix.fill(weight.data_ptr(), KINDS[torch.bfloat16], np.arange(shape[0]))
            decoder.repeat(*made)
            nbytes += sum(matrix.nbytes for matrix in made)
            trim()
        arena.settle()
        info = replace(info, weight_bytes=info.weight_bytes + nbytes)
        return NativeTransformer(config, info, decoder, self._threads)

    def _begin(self, cache: Cache) -> Any:  # noqa: ANN401 - the module's own type
        rows = cache.rows
        layers = zip(rows.keys, rows.values, rows.key_scales, rows.value_scales, strict=True)
        strips = [(*(part.data_ptr() for part in layer), layer[0].stride(0), layer[0].shape[1]) for layer in layers]
        kind = STORED[self.info.layout.stored]
        lie = np.array(strips, dtype=np.int64), rows
        wide = ALONE if self._threads else max(SHARED_WORK // self.numel, 1)
        session = self._native.Session(self._decoder, self._team, kind, *lie, team_of(widest()), wide)
        self._sessions[cache] = session
        return session


def _lot(row: int, lot: Lot) -> tuple[Any, ...]:
    """What draws tokens from wanted rows."""
    s = lot.sampling
    bent = (bends.asked(s, lot.text, lot.prompt_length), lot.banned) if s.bends or lot.banned else None
    return row, *cuts.asked(s), lot.keys, lot.tokens, lot.parents, lot.odds, bent


def _segments(segments: Sequence[Segment], cache: Cache) -> tuple[list[int], list[tuple[int, int]]]:
    """Seven numbers for every segment, and the runs of cache rows that they point into."""
    table: list[int] = []
    runs: list[tuple[int, int]] = []
    for s in segments:
        held = cache.runs(s)
        mask = s.mask.data_ptr() if s.mask is not None else 0
        table += (s.start, s.rows, s.past, s.base, mask, len(runs), len(held))
        runs += held
    return table, runs


def _index(order: list[int], layer: int) -> int:
    return len(order) - 1 if layer == -1 else order.index(layer)


def assemble_native(
    recipe: Recipe, checkpoint: Tensors, info: ModelInfo, threads: int, dtype: str = "auto"
) -> NativeTransformer:
    """The decoder that a recipe and a checkpoint make.

    `dtype` "auto" multiplies weights as they are stored with float32 activations (beside bfloat16 weights, where there
    are tile registers, to one part in 2^18); "bfloat16" rounds both to that.
    "int8" and "int4" round weights to whole numbers and activations to more bits (16 and 8), "w8a8" both to 8.
    `threads` 0: one per core for a large model, one for a small one.
    """
    reader = Reader(checkpoint, recipe, torch.float32, info.layout.device)
    packer = Packer(recipe, reader, Rounding(PACKED.get(dtype)))
    made = decoder(recipe.config, packer, packer.arena, exact=dtype not in COARSE)
    trim()
    info = replace(info, weight_bytes=packer.nbytes, rounded=dtype if dtype in PACKED else "")
    return NativeTransformer(recipe.config, info, made, threads)
