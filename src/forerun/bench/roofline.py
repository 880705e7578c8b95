"""`forerun bench roofline`: how long a pass takes for one row and for several, against the memory's own speed.

Llama shapes with random weights. Each round reads a large buffer (the machine's bandwidth at that moment) and runs a
pass of every width, the order turned from round to round; medians are reported. T(k)/T(1) is what verifying k tokens
costs: the planner's question. The share of the limit is (weights + keys and values read) / bandwidth / T(1).
On a GPU, or where padded passes are asked for, a pass is all that the engine's runner does: packing and sending its
inputs, the captured graph, and fetching the best tokens: `--device cuda --shapes 1.1B,8B --dtype bf16`.
Does not: measure arithmetic; say anything of text, which random weights do not have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.bench import machine
from forerun.bench.figures import Spread
from forerun.bench.paper import paper, png, sheet
from forerun.caches.contiguous import ContiguousCache
from forerun.config import PADDED
from forerun.engine import costs
from forerun.engine.batch import pack
from forerun.engine.grid import Shaping
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError, unknown
from forerun.kernels import native
from forerun.models.assemble import assemble, info_of, specs
from forerun.models.contract import ModelInfo
from forerun.models.families.llama import adapt
from forerun.models.load import KEPT
from forerun.models.native import NativeTransformer, assemble_native, threads_for
from forerun.models.recipe import Recipe, Settings
from forerun.models.transformer import Transformer
from forerun.types import Work
from forerun.weights.load import Entry

# hidden size, layers, heads, KV heads, feed-forward width, vocabulary, tied embeddings
SHAPES = {
    "1M": (128, 2, 2, 1, 384, 4096, True),
    "125M": (768, 12, 12, 4, 2048, 32000, False),
    "360M": (960, 32, 15, 5, 2560, 49152, True),
    "1.1B": (2048, 22, 32, 4, 5632, 32000, False),
    "8B": (4096, 32, 32, 8, 14336, 128256, False),
}
LOADED = {
    "exact": "auto",
    "bf16": "bfloat16",
    "int8": "int8",
    "w8a8": "w8a8",
    "int4": "int4",
}  # precisions; exact: bf16 weights, float32 activations
DTYPES = tuple(LOADED)
PLAIN = ("exact", "bf16", "int8", "int4")  # of padded passes
_BUFFER = 512 << 20  # bytes; far more than any cache holds
_BLOCK = 1 << 20
_READS = 8  # of the buffer, on a GPU, so that starting them does not count


@dataclass(frozen=True)
class Order:
    """What to measure."""

    shapes: Sequence[str] = ("125M", "360M")
    dtypes: Sequence[str] = ("int8", "bf16")
    widths: Sequence[int] = (1, 2, 4, 8, 16)
    context: int = 256
    rounds: int = 15
    threads: int = 0
    device: str = "cpu"
    passes: str = "auto"  # as Config has it
    kv_dtype: str = "auto"  # the same; of compiled passes

    @property
    def padded(self) -> bool:
        """Whether the engine's runner is measured on passes of fixed shape, and not the compiled pass alone."""
        return self.device == "cuda" or self.passes in PADDED


class Noise:
    """A checkpoint of random bfloat16 weights that no file holds."""

    def __init__(self, recipe: Recipe) -> None:
        self.folder = Path("noise")
        shapes = specs(recipe)
        self.entries = {name: Entry(self.folder, "BF16", shape, 0, 0) for name, shape in shapes.items()}
        self._block = torch.randn(_BLOCK, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()

    def read(self, name: str) -> torch.Tensor:
        shape = self.entries[name].shape
        count = int(np.prod(shape))
        return self._block.repeat(-(-count // _BLOCK))[:count].view(shape)

    def release(self, name: str) -> None:
        """Nothing is mapped."""


def run(order: Order) -> dict[str, Any]:
    """Every shape in every precision, one after the other."""
    if order.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for and PyTorch finds no GPU; use device='cpu'.")
    if native.load() is None and order.device != "cuda":
        raise ConfigError(f"there is nothing to measure: {native.describe()}")
    for given, known, what in (
        (order.shapes, SHAPES, "shape"),
        (order.dtypes, PLAIN if order.padded else DTYPES, "dtype"),
    ):
        for name in given:
            if name not in known:
                raise ConfigError(unknown("forerun bench roofline", what, name, known))
    if order.padded and order.kv_dtype != "auto":
        message = f"kv_dtype {order.kv_dtype!r} is for compiled passes and these are padded"
        raise ConfigError(f"{message}; leave it out, or use device='cpu' and passes='auto'.")
    cases = [case(shape, dtype, order) for dtype in order.dtypes for shape in order.shapes]
    return {
        "title": "The cost of a pass",
        "benchmark": "roofline",
        **machine.circumstances(),
        "machine": machine.facts()
        | machine.gpu(order.device)
        | {"threads": order.threads or threads_for(_BUFFER), "dtype": "see the table"},
        "context": order.context,
        "device": order.device,
        "passes": order.passes,
        "kv_dtype": order.kv_dtype,
        "bandwidth_gbs": round(float(np.median([c["bandwidth_gbs"] for c in cases])), 2),
        "cases": cases,
    }


def dimensions(shape: str) -> dict[str, Any]:
    """What config.json says of a shape's sizes."""
    hidden, layers, heads, kv_heads, ffn, vocab, tied = SHAPES[shape]
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "head_dim": hidden // heads,
        "tie_word_embeddings": tied,
    }


def build(shape: str, dtype: str, threads: int, kept: torch.dtype | None) -> NativeTransformer:
    """A decoder of this shape, its keys and values kept in a precision of their own where one is given."""
    recipe = adapt(Settings(dimensions(shape), shape))
    info = info_of(recipe.config, shape, torch.float32 if dtype == "exact" else torch.bfloat16, torch.device("cpu"))
    info = replace(info, layout=replace(info.layout, kept=kept))
    return assemble_native(recipe, Noise(recipe), info, threads, LOADED[dtype])


def build_plain(shape: str, dtype: str, device: torch.device) -> Transformer:
    """The same in PyTorch, whose passes may be padded."""
    recipe = adapt(Settings(dimensions(shape), shape))
    info = info_of(recipe.config, shape, torch.float32 if dtype == "exact" else torch.bfloat16, device)
    return assemble(recipe, Noise(recipe), replace(info, rounded=dtype if dtype in {"int8", "int4"} else ""))


def compiled_passes(model: NativeTransformer, order: Order) -> dict[int, costs.Timed]:
    """One call per width, after a context."""
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, order.context + max(order.widths))
    slot, _ = cache.open(())
    prompt = tuple(range(order.context))
    first = pack([Work(slot, prompt, logits=())], cache, torch.device("cpu"))
    model.forward(first, cache)
    cache.advance(first.segments)
    cache.keep(slot, prompt, range(order.context))
    passes = {
        width: pack([Work(slot, tuple(range(width)), logits=tuple(range(width)))], cache, torch.device("cpu"))
        for width in order.widths
    }
    return {width: partial(model.forward, work, cache) for width, work in passes.items()}


def padded_passes(model: Transformer, order: Order) -> dict[int, costs.Timed]:
    """The same through the engine's runner."""
    length = order.context + max(order.widths)
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, length)
    runner = ModelRunner(model, cache, Shaping(length, order.passes == "invariant", resident=order.passes == "auto"))
    return costs.passes(runner, order.widths, order.context)


def read_speed(device: str, threads: int) -> Callable[[], float]:
    """What measures the bytes per second at which the device reads a buffer once."""
    if device == "cpu":
        return partial(native.bandwidth, np.ones(_BUFFER // 8), threads)
    buffer = torch.ones(_BUFFER // 4, device=device)

    def speed() -> float:
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(_READS):
            buffer.amax()
        torch.cuda.synchronize()
        return _READS * _BUFFER / (perf_counter() - began)

    return speed


def case(shape: str, dtype: str, order: Order) -> dict[str, Any]:
    """One shape in one precision."""
    threads = order.threads or threads_for(_BUFFER)
    model: Transformer | NativeTransformer
    if order.padded:
        torch.set_num_threads(threads)
        model = plain = build_plain(shape, dtype, torch.device(order.device))
        passes = padded_passes(plain, order)
    else:
        model = compiled = build(shape, dtype, threads, KEPT[order.kv_dtype])
        passes = compiled_passes(compiled, order)
    times: dict[int, list[float]] = {width: [] for width in order.widths}
    speed, speeds = read_speed(order.device, threads), []
    for turn in track(range(order.rounds + 1), f"{shape} {dtype}", console=Console(stderr=True), transient=True):
        speeds.append(speed())
        for width, seconds in costs.timed(passes, turn).items():
            times[width].append(seconds)
    return _figures(model.info, order, {width: found[1:] for width, found in times.items()}, speeds) | {
        "shape": shape,
        "dtype": dtype,
        "threads": threads,
    }


def _figures(info: ModelInfo, order: Order, times: dict[int, list[float]], speeds: list[float]) -> dict[str, Any]:
    read = info.weight_bytes + info.layout.token_bytes * order.context
    one = float(np.median(times[order.widths[0]]))
    bandwidth = float(np.median(speeds))
    return {
        "bandwidth_gbs": round(bandwidth / 1e9, 2),
        "bytes_per_pass": read,
        "ms": {str(width): round(float(np.median(found)) * 1e3, 4) for width, found in times.items()},
        "spread_ms": {str(w): vars(Spread.of([t * 1e3 for t in found])) for w, found in times.items()},
        "curve": {str(width): round(float(np.median(found)) / one, 3) for width, found in times.items()},
        "share_of_limit": round(read / bandwidth / one, 3),
    }


def show(found: dict[str, Any]) -> None:
    """A row per shape and precision: the first width's time, and what every other one takes of it."""
    table = Table(title=f"{found['title']}; memory reads {found['bandwidth_gbs']} GB/s", title_justify="left")
    first, *others = list(found["cases"][0]["ms"]) if found["cases"] else [""]
    heads = ("shape", "dtype", "threads", "of limit", f"T({first}) ms", *(f"T({w}) /T({first})" for w in others))
    for head in heads:
        table.add_column(head, justify="left" if head in {"shape", "dtype"} else "right")
    for c in found["cases"]:
        curve = (f"{c['curve'][w]:.2f}" for w in others)
        share, time = f"{c['share_of_limit']:.0%}", f"{c['ms'][first]:.3f}"
        table.add_row(c["shape"], c["dtype"], str(c["threads"]), share, time, *curve)
    paper().print(table)


def plot(found: dict[str, Any]) -> bytes:
    """What a pass over k rows takes of one over the first width, a line per shape and precision; a PNG."""
    figure = sheet(7, 4.5)
    axes = figure.subplots()
    for c in found["cases"]:
        axes.plot(
            [int(width) for width in c["curve"]], list(c["curve"].values()), "o-", label=f"{c['shape']} {c['dtype']}"
        )
    axes.set(xlabel="rows of a pass", ylabel="times the first width's", ylim=(0, None))
    axes.legend()
    return png(figure)
