"""One target over several processes: each layer split by heads and by columns of its feed-forward (1909.08053).

Process 0 leads: it has the engine, and tells the others each pass and where its keys and values lie. They run the same
layers over their own part of the weights, and two sums per layer make every process know the whole. Sums of two parts
are the same in every process and run; they are not the bits of one process, whose matrices add up in another order.
Does not: split embeddings or the head; run compiled or padded passes; go on without a process that has ended.
"""

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from forerun.caches.contract import Cache
from forerun.errors import ConfigError, ModelError
from forerun.layers.kv_rows import KVRows
from forerun.layers.linear import Linear
from forerun.layers.mlp import Mlp
from forerun.models.assemble import assemble, meaning
from forerun.models.contract import Model, ModelInfo
from forerun.models.recipe import Names, Recipe, TransformerConfig
from forerun.models.transformer import Layer, LayerWeights, Transformer
from forerun.types import KVLayout, LayerPlan, Pass, PassOutput, Segment
from forerun.weights.load import Entry, Tensors

_SUM = timedelta(seconds=120)  # that the others may take to their next sum
_EVER = timedelta(days=10_000)  # that nobody may ask for a pass
_LETTING_GO = 0.2  # seconds; without it one exit in twenty aborts on a busy machine
_NONE = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Split:
    """A process among those that share a target."""

    rank: int
    ways: int
    here: int  # of them on this machine
    sums: dist.ProcessGroup
    orders: dist.ProcessGroup
    children: tuple[subprocess.Popen[bytes], ...] = ()
    store: str = ""  # the file by which they met


def join(ways: int, device: str, command: Callable[[int, str], Sequence[str]]) -> Split:
    """The part of a process that torchrun started; else that of the leading one, which starts others by `command`."""
    if dist.is_initialized():
        raise ConfigError(f"tensor_parallel is {ways} and this process has one split target already; use another one.")
    if not dist.is_torchelastic_launched():
        if sys.platform == "linux":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nobody else need hear what processes of one machine say
        store = str(Path(tempfile.mkdtemp(prefix="forerun-")) / "store")
        children = tuple(
            subprocess.Popen(command(rank, store))  # noqa: S603 - our own
            for rank in range(1, ways)
        )
        return replace(meet(0, ways, device, store), children=children, store=store)
    dist.init_process_group("gloo", timeout=_SUM)
    if dist.get_world_size() != ways:
        message = f"tensor_parallel is {ways} and torchrun started {dist.get_world_size()} processes"
        raise ConfigError(f"{message}; say the same number to both.")
    return _split(device, int(os.environ["LOCAL_WORLD_SIZE"]))


def meet(rank: int, ways: int, device: str, store: str) -> Split:
    """The part of a process that knows its rank, beside others of this machine that have the same store."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ways, timeout=_SUM)
    return _split(device, ways)


def _split(device: str, here: int) -> Split:
    rank = dist.get_rank()
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    sums = dist.new_group(backend="nccl" if device == "cuda" else "gloo", timeout=_SUM)
    return Split(rank, dist.get_world_size(), here, sums, dist.new_group(backend="gloo", timeout=_EVER))


class Shard:
    """A checkpoint of which every process sees its own part: rows of what opens a block, columns of what closes it."""

    def __init__(self, whole: Tensors, recipe: Recipe, split: Split) -> None:
        self.whole, self.folder, self.split, self.recipe = whole, whole.folder, split, recipe
        self._layer = re.compile(re.escape(recipe.names.layer).replace(r"\{\}", r"\d+"))
        self._rows = _rows(recipe.config, recipe.names)
        self.entries: dict[str, Entry] = {
            name: replace(entry, shape=tuple(self._part(name, torch.empty(entry.shape, device="meta")).shape))
            for name, entry in whole.entries.items()
        }

    def read(self, name: str) -> torch.Tensor:
        """What a process has of a tensor."""
        return self._part(name, self.whole.read(name))

    def release(self, name: str) -> None:
        """Give the pages back."""
        self.whole.release(name)

    def _part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        names, (place, _, kind) = self.recipe.names, meaning(name, self.recipe.names).rpartition(".")
        layer = self._layer.match(place)
        base = place[layer.end() :] if layer is not None else ""
        across = kind == "weight" and names.transposed
        if base in self._rows:
            return self._cut(tensor, self._rows[base], int(across))
        if base not in (names.o, names.down):
            return tensor
        if kind == "bias":  # is added once
            return tensor if self.split.rank == 0 else torch.zeros_like(tensor)
        return self._cut(tensor, (tensor.shape[1 - across],), 1 - across)

    def _cut(self, tensor: torch.Tensor, blocks: Sequence[int], axis: int) -> torch.Tensor:
        rank, ways = self.split.rank, self.split.ways
        return torch.cat([block.chunk(ways, axis)[rank] for block in tensor.split(blocks, axis)], axis)


def _rows(config: TransformerConfig, names: Names) -> dict[str, tuple[int, ...]]:
    """What is split by rows -> blocks of rows that are each split."""
    q, kv, up = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.ffn_size
    fused = (q + 2 * kv,) if names.qkv_per_head else (q, kv, kv)
    found: dict[str, tuple[int, ...]] = {names.q: (q,), names.k: (kv,), names.v: (kv,), names.qkv: fused}
    found |= {names.gate: (up,), names.up: (up,), names.gate_up: (up, up)}
    return {name: blocks for name, blocks in found.items() if name}


def shared(config: TransformerConfig, name: str, ways: int) -> TransformerConfig:
    """What one of the processes has; ConfigError where the parts would not be alike."""
    parts = {"attention heads": config.num_heads, "key heads": config.num_kv_heads, "columns": config.ffn_size}
    for what, size in parts.items():
        if size % ways:
            raise ConfigError(f"{name} has {size} {what}, which {ways} processes cannot share; use fewer.")
    if config.qk_norm in {"full", "heads"}:
        raise ConfigError(f"{name} has norms over all its heads, which processes cannot share; use one.")
    heads, kv_heads, columns = (size // ways for size in parts.values())
    return replace(config, num_heads=heads, num_kv_heads=kv_heads, ffn_size=columns)


class Summed(Linear):
    """A matrix of which this process has some columns: everybody's products, added up."""

    def __init__(self, own: Linear, group: dist.ProcessGroup) -> None:
        self.own, self.group, self.bias, self.numel, self.nbytes = own, group, own.bias, own.numel, own.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        found = self.own(x)
        dist.all_reduce(found, group=self.group)
        return found

    def onto(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self(x).add_(residual)


def assemble_part(recipe: Recipe, weights: Tensors, info: ModelInfo, split: Split) -> Model:
    """The leading process's model, or what another one follows with."""
    part = replace(recipe, config=shared(recipe.config, info.name, split.ways))
    heads = tuple(size // split.ways for size in info.layout.heads)
    info = replace(info, layout=replace(info.layout, heads=heads))
    own = assemble(part, Shard(weights, recipe, split), info)
    layers = [Layer(part.config, layer.index, _summed(layer.weights, part.config, split)) for layer in own.layers]
    model = Transformer(part.config, replace(own.info, padded=False), own.ends, layers)
    return Leading(model, split) if split.rank == 0 else model


def _summed(w: LayerWeights, config: TransformerConfig, split: Split) -> LayerWeights:
    mlp = Mlp(w.mlp.up, Summed(w.mlp.down, split.sums), config.activation, gated=config.gated)
    return replace(w, o=Summed(w.o, split.sums), mlp=mlp)


class Leading(Model):
    """The target as the engine has it."""

    def __init__(self, own: Transformer, split: Split) -> None:
        self.own, self.split, self.info, self._lost = own, split, own.info, ""
        self._caches: WeakKeyDictionary[Cache, int] = WeakKeyDictionary()
        self._next = count()
        atexit.register(self._end)

    @property
    def lost(self) -> str:
        if not self._lost and any(child.poll() is not None for child in self.split.children):
            self._lost = f"one of the {self.split.ways} processes that hold {self.info.name} has ended; start all anew."
        return self._lost

    def forward(self, work: Pass, cache: Cache) -> PassOutput:
        if self._lost:
            raise ModelError(self._lost)
        try:
            _tell(self._order(work, cache), self.split)
            return self.own.forward(work, cache)
        except RuntimeError as problem:  # torch's word for a peer that is gone
            who = f"one of the {self.split.ways} processes that hold {self.info.name} has ended"
            self._lost = f"{who} ({str(problem).partition(chr(10))[0]:.80}); start all anew."
            raise ModelError(self._lost) from problem

    def _order(self, work: Pass, cache: Cache) -> dict[str, Any]:
        if cache not in self._caches:
            self._caches[cache], cache.rows.noted = next(self._next), []
        moves, cache.rows.noted = cache.rows.noted, []
        plan = work.plan.layers if work.plan is not None else range(self.info.num_layers)
        return {
            "cache": self._caches[cache],
            "size": cache.rows.scratch,
            "moves": moves,
            "tokens": work.tokens.tolist(),
            "positions": work.positions.tolist(),
            "layers": list(plan),
            "segments": [_spelled(s, cache) for s in work.segments],
        }

    def _end(self) -> None:
        if not self.lost:
            _tell({}, self.split)
        _leave()
        for child in self.split.children:
            child.wait()
        if self.split.store:
            shutil.rmtree(Path(self.split.store).parent, ignore_errors=True)


def _spelled(s: Segment, cache: Cache) -> dict[str, Any]:
    where = {"slot": s.slot, "start": s.start, "rows": s.rows, "past": s.past, "base": s.base}
    return {"where": where, "mask": s.mask.int().tolist() if s.mask is not None else None, "runs": cache.runs(s)}


def _tell(order: dict[str, Any], split: Split) -> None:
    data = torch.frombuffer(bytearray(json.dumps(order).encode()), dtype=torch.uint8)
    dist.broadcast(torch.tensor([len(data)]), 0, group=split.orders)
    dist.broadcast(data, 0, group=split.orders)


def _hear(split: Split) -> dict[str, Any]:
    size = torch.zeros(1, dtype=torch.int64)
    dist.broadcast(size, 0, group=split.orders)
    data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, 0, group=split.orders)
    found: dict[str, Any] = json.loads(data.numpy().tobytes())
    return found


def _leave() -> None:
    """Sum no more. Gloo's threads let go of what they sent a moment late, which aborts a Python that has ended."""
    time.sleep(_LETTING_GO)
    dist.destroy_process_group()


class Mirror:
    """Keys and values of the heads of one process, in the rows that the leading one names."""

    def __init__(self, layout: KVLayout, size: int) -> None:
        self.rows = KVRows(layout, size)

    def follow(self, order: dict[str, Any]) -> None:
        """Move what was moved, and find the rows of the next pass."""
        for source, to in order["moves"]:
            self.rows.move(source, to)
        found = [[row for first, size in s["runs"] for row in range(first, first + size)] for s in order["segments"]]
        device = self.rows.keys[0].device
        places = list(zip((s["where"] for s in order["segments"]), found, strict=True))
        self._held = {where["start"]: torch.tensor(rows, device=device) for where, rows in places}
        new = [row for where, rows in places for row in rows[len(rows) - where["rows"] :]]
        self._place = self.rows.place(new)

    def write(self, layer: int, _: Pass, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.rows.write(layer, self._place, keys, values)

    def read(self, layer: int, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows.read(layer, lambda strip: strip.index_select(1, self._held[segment.start]))


def follow(model: Model, split: Split) -> None:
    """Run every pass that the leading process runs, until it ends; ModelError where it did not say so."""
    _leave_signals()
    mirrors: dict[int, Mirror] = {}
    try:
        while order := _hear(split):
            mirror = mirrors.setdefault(order["cache"], Mirror(model.info.layout, order["size"]))
            mirror.follow(order)
            cache: Any = mirror
            model.forward(_pass(order, model.info.layout.device), cache)
    except RuntimeError as problem:
        message = f"process {split.rank} of {split.ways} lost another one that holds {model.info.name}"
        raise ModelError(f"{message}; start all anew.") from problem
    _leave()


def _leave_signals() -> None:
    """Ctrl-C, and a service that ends, reach all processes at once: the leading one may go on, or drain first."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _pass(order: dict[str, Any], device: torch.device) -> Pass:
    segments = tuple(
        Segment(**{**s["where"], "mask": None if mask is None else torch.tensor(mask, dtype=torch.bool, device=device)})
        for s in order["segments"]
        for mask in [s["mask"]]
    )
    tokens, positions = (torch.tensor(order[name], device=device) for name in ("tokens", "positions"))
    return Pass(tokens, positions, segments, _NONE.to(device), (), LayerPlan(tuple(order["layers"]), logits=False))
