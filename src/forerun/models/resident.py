"""A decoder's whole pass over up to 16 rows as one launch (`kernels/cuda/pass.cu`), for GPUs.

Every weight is read once, by blocks that stay for the pass and ask for weights long before they need them. A row has
the same bits whatever else is in the pass: a leaf of a tree is a chain of its own, and attention is cut at fixed
places.
Does not: take wider passes, other decoders than gated ones of bfloat16 with plain RMS norms, or keep what it returned
beyond the next pass.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from forerun import host
from forerun.caches.contract import Cache
from forerun.growth import leaves
from forerun.kernels import launch
from forerun.layers.linear import DenseLinear, Linear
from forerun.layers.norm import RmsNorm
from forerun.models.contract import Whole
from forerun.models.transformer import Layer, Transformer, parts
from forerun.types import Flat, PassOutput

ROWS = 16
THREADS = 640  # warps: sixteen multiply, one settles, one brings weights, and two give their registers away
SPLIT = 256  # entries that a block attends to at a time
ALIGNED = 16  # entries that have to lie side by side in the cache
STAGE = 8 * (2 * 1024 + 64)  # bytes of shared memory that are filled at a time
STAGES = 12
TAILS = 512  # entries of all trees' chains
TIGHT = 2048  # inputs; where a warp holds more of 16 rows, threads that settle give up registers
FEW = 8  # rows; a pass of more is compiled for `ROWS`
REGISTERS = 4096  # inputs whose part of all rows a warp can hold
HELD = 8  # tiles of a block whose sums it can hold, where it cannot hold its inputs
DEPTH = 2  # stages that are asked for at a time: as many as keep the memory busy; more delay everything else
LARGE = 256 << 20  # bytes of a layer; from here on one stage more pays, for blocks seldom wait
PATIENT = 1  # the same while blocks wait for each other
DIMS = (32, 64, 96, 128)
ANSWERS = 1024  # passes whose findings are kept at a time

_POINTERS = (
    *("layers", "embed", "head", "final_norm", "frequencies", "board", "stale", "partial", "weights"),
    *("counts", "meeting", "logits", "bests", "facts", "told", "hidden", "table", "given", "entries"),
)
_NUMBERS = ("rows", "items", "steps", "with_head", "given_count", "stale_rows", "stale_steps")
_PER_ROW = ("token", "position", "to", "wanted", "chain_rows")
CHAIN = np.dtype(
    [(name, np.int32) for name in ("count", "rows", "settled", "length", "first", "table", "tail", "start")]
)


def _layout(layers: int) -> np.dtype[np.void]:
    """`Params` of the source."""
    fields: list[tuple[str, npt.DTypeLike] | tuple[str, npt.DTypeLike, int]] = [(n, np.uint64) for n in _POINTERS]
    fields += [(name, np.float32) for name in ("scale", "rope_scale", "eps")]
    fields += [("target", np.uint32), *((name, np.int32) for name in _NUMBERS)]
    fields += [*((name, np.int32, ROWS) for name in _PER_ROW), ("chain_count", np.int32), ("chain", CHAIN, ROWS)]
    fields += [("tail", np.int32, TAILS), ("plan", np.int16, layers), ("slot", np.int16, layers)]
    return np.dtype(fields, align=True)


class Chain(NamedTuple):
    """Rows of a pass that see the same entries, each as far as its own position."""

    rows: list[int]
    slot: int
    settled: int  # entries that lie by their place in the request
    tail: list[int]  # the places of those after
    length: int


def chains(flat: Flat) -> list[Chain]:
    """One per request, or per leaf of its tree."""
    found: list[Chain] = []
    for s, parents in zip(flat.segments, flat.trees, strict=True):
        if parents is None:
            length = s.past + s.base + s.rows
            found.append(Chain(list(range(s.start, s.start + s.rows)), s.slot, length, [], length))
            continue
        for fresh, path in leaves(parents, s.base):
            rows, tail = [s.start + node - s.base for node in fresh], [s.past + node for node in path]
            found.append(Chain(rows, s.slot, s.past, tail, s.past + len(tail)))
    return found


class Resident:
    """The passes of one model over one cache. Not for several threads at once."""

    def __init__(self, model: Transformer, cache: Cache, compiled: Callable[[int], launch.Launch], blocks: int) -> None:
        self.model, self.cache, self.blocks = model, cache, blocks
        self._launches: dict[int, launch.Launch] = {}
        self._compiled = compiled
        config, ends, device = model.config, model.ends, model.info.layout.device
        self.device, self.group = device, config.num_heads // config.num_kv_heads
        self._heads, self._all = config.num_kv_heads, list(range(config.num_layers))
        self._params = np.zeros(1, _layout(config.num_layers))
        names = self._params.dtype.names or ()
        many = {"tail", "plan", "slot"}
        single = [name for name in names if name not in many | {*_PER_ROW, "chain"}]
        self._numbers_of = {name: self._params[name] for name in single}  # one number each
        self._lists = {name: self._params[name][0] for name in many}
        self._rows = self._integers("token", len(_PER_ROW), ROWS)
        self._chains = self._integers("chain", ROWS, CHAIN.itemsize // 4)
        self._lists["slot"][:] = -1
        self._planned: Sequence[int] = ()  # the layers that `plan` holds
        self._hidden_before: Sequence[int] = ()  # what the pass before was asked for, which `slot` still holds
        wide, half, whole = torch.float32, torch.bfloat16, torch.int32

        def room(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        rope = config.ropes[0]
        norm = ends.final_norm
        assert isinstance(norm, RmsNorm)  # noqa: S101 - `unfit` has asked
        self._told = torch.zeros(ANSWERS, 3, ROWS, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._read = self._told.numpy()
        facts = room(ANSWERS, 3, ROWS, dtype=torch.float64)
        # Views and addresses are made once: each takes microseconds, in which the GPU rests.
        self._facts = facts.unbind()
        pairs = zip(self._facts, self._told.unbind(), strict=True)
        self._answers = [(on_device.data_ptr(), on_host.data_ptr()) for on_device, on_host in pairs]
        self._logits = room(ROWS, config.vocab_size, dtype=wide)
        self._hidden = room(0, ROWS, config.hidden_size, dtype=half)
        self._table = torch.zeros(0, dtype=whole)
        self._boards = torch.full((2, config.num_layers, ROWS, board(model)), -1, dtype=torch.int16, device=device)
        self._sides = [one.data_ptr() for one in self._boards]
        self._last = (0, 0)  # rows and steps of the pass before
        self._count = self._items = self._met = 0
        heads = [
            (strip.data_ptr(), values.data_ptr())
            for strip, values in zip(cache.rows.keys, cache.rows.values, strict=True)
        ]
        table = np.zeros((config.num_layers, 10), np.uint64)
        for index, layer in enumerate(model.layers):
            table[index] = [*_places(layer), *heads[index], layer.weights.window or 0]
        self._kept = {
            "layers": torch.from_numpy(table.view(np.int64)).to(device),
            "embed": ends.embed,
            "head": _weight(ends.head),
            "final_norm": norm.gain,
            "frequencies": torch.tensor(rope.frequencies if rope is not None else (0.0,), dtype=wide, device=device),
            "meeting": room(1, dtype=whole),
            "bests": room(3, blocks, ROWS, dtype=wide),
            "logits": self._logits,
        }
        for name, tensor in self._kept.items():
            self._numbers_of[name][0] = tensor.data_ptr()
        numbers = {"entries": cache.rows.keys[0].shape[1], "scale": config.attention_scale, "eps": norm.eps}
        for name, number in (numbers | {"rope_scale": rope.scale if rope is not None else 1.0}).items():
            self._numbers_of[name][0] = number
        self._room_for(64)

    def _integers(self, name: str, *shape: int) -> npt.NDArray[np.int32]:
        """The argument's fields from one on, as one array: to fill many takes as long as to fill one."""
        fields = self._params.dtype.fields
        assert fields is not None  # noqa: S101 - `_layout` has some
        return np.ndarray(shape, np.int32, self._params.data, fields[name][1])

    def _room_for(self, items: int) -> None:
        """Memory for the splits of attention."""
        if items <= self._items:
            return
        self._items = max(items, 2 * self._items)
        dim = self.model.config.head_dim
        sizes = {"partial": (self._items, 16, dim), "weights": (self._items, 16, 2), "counts": (self._items,)}
        for name, shape in sizes.items():
            dtype = torch.int32 if name == "counts" else torch.float32
            self._kept[name] = torch.zeros(shape, dtype=dtype, device=self.device)
            self._numbers_of[name][0] = self._kept[name].data_ptr()

    def run(self, flat: Flat, given: torch.Tensor | None = None) -> Whole | None:
        """Run a pass, with the first tokens replaced by those of a tensor where one is given. None: it does not fit."""
        rows, wanted = len(flat.tokens), flat.wanted
        layers = list(flat.plan.layers) if flat.plan is not None else self._all
        if rows > ROWS or not layers or len(set(wanted)) < len(wanted):
            return None
        if not self._fill(flat):
            return None
        head = bool(wanted) and (flat.plan is None or flat.plan.logits)
        put, lists = self._numbers_of, self._lists
        put["rows"][0], put["steps"][0], put["with_head"][0] = rows, len(layers), head
        put["given"][0], put["given_count"][0] = (given.data_ptr(), len(given)) if given is not None else (0, 0)
        if layers is not self._planned:
            lists["plan"][: len(layers)] = self._planned = layers
        asked = self._asked(flat.hidden, layers) if flat.hidden or self._hidden_before else {}
        self._hidden_before = flat.hidden
        answer = self._count % ANSWERS
        put["facts"][0], put["told"][0] = self._answers[answer]
        put["target"][0] = met = (self._met + self.blocks * head) % 2**32
        side = self._count % 2
        put["board"][0], put["stale"][0] = self._sides[side], self._sides[1 - side]
        put["stale_rows"][0], put["stale_steps"][0] = self._last
        self.compile(FEW if rows <= FEW else ROWS)(self._params)
        self._met, self._last = met, (rows, len(layers))  # only now: a launch that failed has not met or written
        self._count += 1
        count = len(wanted) if head else 0
        hidden = {layer: self._hidden[at, :rows] for layer, at in asked.items()}
        output = PassOutput(self._logits.narrow(0, 0, count), hidden)
        return Whole(output, self._facts[answer].narrow(1, 0, count), self._read[answer, :, :count])

    def _asked(self, hidden: Sequence[int], layers: list[int]) -> dict[int, int]:
        """Where in `hidden` each of the layers is found that were asked for and run; -1 is the last one."""
        slots = self._lists["slot"]
        slots[:] = -1
        found: dict[int, int] = {}
        for layer in hidden:
            step = len(layers) - 1 if layer < 0 else layers.index(layer) if layer in layers else -1
            if step >= 0:
                slots[step] = found[layer] = slots[step] if slots[step] >= 0 else len(set(found.values()))
        most = len(found)
        if most > len(self._hidden):
            size = self.model.config.hidden_size
            self._hidden = torch.zeros(most, ROWS, size, dtype=torch.bfloat16, device=self.device)
            self._numbers_of["hidden"][0] = self._hidden.data_ptr()
        return {layer: int(at) for layer, at in found.items()}

    def _fill(self, flat: Flat) -> bool:
        """Write down what a pass reads; whether it fits."""
        lists, put = self._lists, self._numbers_of
        rows, found = len(flat.tokens), chains(flat)
        places = {s.slot: self.cache.runs(s) for s in flat.segments}
        if sum(len(c.tail) for c in found) > TAILS or any(_ragged(runs) for runs in places.values()):
            return False
        to, wanted = [0] * rows, [-1] * rows
        for number, row in enumerate(flat.wanted):
            wanted[row] = number
        order, tails, table, described = list[int](), list[int](), list[int](), list[tuple[int, ...]]()
        starts: dict[int, int] = {}
        items = 0
        for c in found:
            runs = places[c.slot]
            if len(runs) > 1 and c.slot not in starts:
                starts[c.slot] = len(table)
                for first, count in runs:
                    table += range(first, first + count, ALIGNED)
            first = runs[0][0] if len(runs) == 1 else -1
            described.append(
                (len(c.rows), len(order), c.settled, c.length, first, starts.get(c.slot, 0), len(tails), items)
            )
            own = range(c.settled - len(c.rows), c.settled) if not c.tail else c.tail[-len(c.rows) :]
            for row, entry in zip(c.rows, own, strict=True):
                to[row] = _row(runs, entry)
            order += c.rows
            tails += [_row(runs, entry) for entry in c.tail]
            items += self._heads * -(-len(c.rows) * self.group // 16) * -(-c.length // SPLIT)
        self._rows[:, :rows] = flat.tokens, flat.positions, to, wanted, order  # as `_PER_ROW` has them
        self._chains[: len(found)] = described
        if tails:
            lists["tail"][: len(tails)] = tails
        put["chain_count"][0], put["items"][0] = len(found), items
        self._room_for(items)
        if table:
            self._table = host.send(table, self.device, torch.int32)
            put["table"][0] = self._table.data_ptr()
        return True

    def compile(self, rows: int) -> launch.Launch:
        """The kernel for passes of up to 8 or 16 rows; it takes some seconds the first time."""
        if rows not in self._launches:
            self._launches[rows] = self._compiled(rows)
        return self._launches[rows]


def _ragged(runs: Sequence[tuple[int, int]]) -> bool:
    """Whether entries that the kernel takes together lie apart."""
    return any(count % ALIGNED for _, count in runs[:-1])


def _row(runs: Sequence[tuple[int, int]], entry: int) -> int:
    """The row of the cache that holds an entry."""
    for first, count in runs:
        if entry < count:
            return first + entry
        entry -= count
    raise IndexError(entry)


def _weight(part: Linear) -> torch.Tensor:
    assert isinstance(part, DenseLinear)  # noqa: S101 - `unfit` has asked
    return part.weight


def _places(layer: Layer) -> list[int]:
    """Where a layer's weights are."""
    w = layer.weights
    bias = w.qkv.bias.data_ptr() if w.qkv.bias is not None else 0
    matrices = [_weight(part).data_ptr() for part in parts(layer)]
    norms = [norm.gain.data_ptr() for norm in (w.attention_norm, w.mlp_norm) if isinstance(norm, RmsNorm)]
    return [*matrices, bias, *norms]


def unfit(model: Transformer, blocks: int, room: int) -> str:
    """Why a model cannot run so on as many multiprocessors with so many bytes of shared memory; empty where it can."""
    c, info = model.config, model.info
    linears = [*(part for layer in model.layers for part in parts(layer)), model.ends.head]
    norms = [n for layer in model.layers for n in (layer.weights.attention_norm, layer.weights.mlp_norm) if n]
    norms.append(model.ends.final_norm)
    other = not c.pre_norm or not c.gated or c.activation not in {"silu", "swish"} or c.post_norm or c.parallel
    other = other or c.o_bias or c.mlp_bias or c.head_bias or bool(c.qk_norm) or c.learned_positions
    other = other or c.attention_cap is not None or c.logit_cap is not None
    rope, sizes = c.ropes[0], (c.hidden_size, c.num_heads * c.head_dim, c.ffn_size)
    reasons = {
        "its precision is not bfloat16": {info.layout.dtype, info.layout.stored} != {torch.bfloat16},
        "its layers are of another kind": other or {c.embed_scale, c.residual_scale, c.logit_scale} != {1.0},
        "its layers are not alike": set(model.widths) != {c.ffn_size} or len(set(c.ropes)) > 1,
        "its rotary positions are of another kind": rope is not None
        and (rope.beyond is not None or rope.dim != c.head_dim),
        "its norms are of another kind": not all(isinstance(n, RmsNorm) and n.gain.dim() == 1 for n in norms),
        "its weights were rounded": not all(isinstance(p, DenseLinear) for p in linears),
        "its sizes are uneven": c.head_dim not in DIMS or any(size % 32 for size in sizes),
        "it has more outputs than a block can hold sums of": any(
            isinstance(p, DenseLinear)
            and p.weight.shape[1] > REGISTERS
            and -(-p.weight.shape[0] // (8 * blocks)) > HELD
            for p in linears
        ),
    }
    reasons["there is too little shared memory"] = sizes_of(model, blocks, room, ROWS)["STAGES"] <= DEPTH
    return next((reason for reason, holds in reasons.items() if holds), "")


def resident(model: Transformer, cache: Cache) -> Resident | None:
    """The passes of a model over a cache, where its GPU and its sizes allow them."""
    device = model.info.layout.device
    if launch.why_not(device):
        return None
    facts = torch.cuda.get_device_properties(device)
    blocks, room = facts.multi_processor_count, getattr(facts, "shared_memory_per_block_optin", 0)
    if unfit(model, blocks, room):
        return None
    made = Resident(model, cache, partial(_compiled, model, blocks, room), blocks)
    for rows in (FEW, ROWS):  # now, so that no request waits for it
        made.compile(rows)
    return made


def _compiled(model: Transformer, blocks: int, room: int, rows: int) -> launch.Launch:
    sizes = sizes_of(model, blocks, room, rows)
    shared = sizes["STAGES"] * (STAGE + 16) + sizes["DESK"]
    return launch.launcher("pass.cu", "forerun_pass", sizes, shared, model.info.layout.device)


def board(model: Transformer) -> int:
    """Halves of words that a layer's parts hand on to each other for a row: `ROW` of the source."""
    c = model.config
    return 6 * c.hidden_size + c.ffn_size + 2 * (c.num_heads + c.num_kv_heads) * c.head_dim


def desk(rows: int, dim: int) -> int:
    """Bytes of shared memory behind the ring, of a kernel for so many rows and heads of that width: `Desk`."""
    sums, norms, scores, turns = 2 * 16 * 128, 16 * 16, 2 * 16 * 16, rows * dim
    table, bests, layers, flags = 5 + SPLIT + 3 * 16, rows // 8 * 32 * 3, 2 * 20 + 2 * 8, 4 + 8
    return 4 * (sums + norms + scores + turns + table + bests + layers + flags)


def sizes_of(model: Transformer, blocks: int, room: int, rows: int) -> dict[str, int]:
    """What the source is compiled for; `room`: bytes of shared memory that a block may have."""
    c, behind = model.config, desk(rows, model.config.head_dim)
    sizes = {"HIDDEN": c.hidden_size, "HEADS": c.num_heads, "KV_HEADS": c.num_kv_heads, "DIM": c.head_dim}
    sizes |= {"FFN": c.ffn_size, "VOCAB": c.vocab_size, "LAYERS": c.num_layers, "ROWS": rows}
    sizes |= {"TURNING": int(c.ropes[0] is not None), "BIAS": int(c.qkv_bias), "DESK": behind}
    sizes |= {"BLOCKS": blocks, "THREADS": THREADS, "STAGES": min(STAGES, (room - behind) // (STAGE + 16))}
    sizes["BOARD"] = board(model)
    sizes["PARAMS"] = _layout(c.num_layers).itemsize
    depth = DEPTH if model.info.weight_bytes < LARGE * c.num_layers else DEPTH + 1
    tight = rows > FEW and c.hidden_size > TIGHT
    registers = {"FEWER": 32, "MORE": 112} if tight else {"FEWER": 64, "MORE": 104}
    return sizes | {"DEPTH": depth, "PATIENT": PATIENT} | registers
