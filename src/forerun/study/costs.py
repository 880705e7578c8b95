"""`forerun study costs`: what a tree's acceptance is worth on a GPU, by its public figures alone.

A pass reads every weight once and multiplies it with every row. `ideal` takes the longer of the two at the peak rates.
`tiles` counts whole output tiles, `waves` whole waves of tiles over the GPU's processors too, in the best of the usual
tile sizes (Matrix Multiplication Background, NVIDIA DU-09799). Beside it stands what Spec-Bench measured with mean
accepted tokens as it reports them; nothing is fitted to those.
Does not: count split sums over the inputs, attention's arithmetic, drafting, or judging; know what a framework adds,
but for the one figure that is published: 40.24 tokens/s of plain decoding on an A100 (hemingkx/Spec-Bench#4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from rich.table import Table

from forerun.bench import machine
from forerun.bench.paper import paper
from forerun.types import Costs

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))  # DU-09799, 2.3
CONTEXT = 500  # tokens, about the middle of Spec-Bench's prompt and answer; 2 % of a pass
WIDTHS = tuple(range(1, 129))
KINDS = ("ideal", "tiles", "waves")
FRAMEWORK = 1 / 40.24  # seconds of a plain pass on an A100, of which its memory needs a quarter
_HALF = 2  # bytes


@dataclass(frozen=True)
class Gpu:
    """Peak rates, as its maker says them."""

    name: str
    bandwidth: float  # bytes per second
    arithmetic: float  # per second: fp16 products, dense, summed in fp32
    processors: int


# NVIDIA GA102 whitepaper, and the A100's data sheet.
RTX_3090 = Gpu("RTX 3090", 936e9, 71e12, 82)
A100 = tuple(Gpu(f"A100 {n}", b, 312e12, 108) for n, b in (("40 GB", 1555e9), ("PCIe", 1935e9), ("SXM", 2039e9)))


@dataclass(frozen=True)
class Decoder:
    """A Llama without grouped heads, in fp16."""

    name: str
    hidden: int
    inner: int
    layers: int
    vocab: int = 32000

    @property
    def matrices(self) -> Iterator[tuple[int, int, int]]:
        """(inputs, outputs, how many of them)."""
        yield self.hidden, self.hidden, 4 * self.layers
        yield self.hidden, self.inner, 2 * self.layers
        yield self.inner, self.hidden, self.layers
        yield self.hidden, self.vocab, 1

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token."""
        return 2 * self.layers * self.hidden * _HALF


VICUNA = {
    "7B": Decoder("Vicuna-7B", 4096, 11008, 32),
    "13B": Decoder("Vicuna-13B", 5120, 13824, 40),
    "33B": Decoder("Vicuna-33B", 6656, 17920, 60),
}


@dataclass(frozen=True)
class Case:
    """A row of Spec-Bench's leaderboard of April 2025: greedy, fp16, one request."""

    method: str
    model: str
    gpus: Sequence[Gpu]
    rows: int  # of a pass: the draft and the last token
    accepted: float  # mean, bonus included
    measured: float  # speed-up


CASES = (
    Case("Token Recycling", "7B", (RTX_3090,), 81, 2.73, 1.40),
    Case("Token Recycling", "7B", A100, 81, 2.73, 2.22),
    Case("Token Recycling", "13B", A100[1:], 81, 2.73, 2.17),
    Case("Token Recycling", "33B", A100[1:], 81, 2.62, 1.83),
    Case("prompt lookup", "7B", (RTX_3090,), 11, 1.73, 1.64),
    Case("prompt lookup", "7B", A100[1:], 11, 1.75, 1.66),
)


def arithmetic(gpu: Gpu, rows: int, inputs: int, outputs: int, kind: str) -> float:
    """Seconds of a product [rows, inputs] x [inputs, outputs] at the peak rate."""
    if kind == "ideal" or rows == 1:  # a vector needs no tile
        return 2 * rows * inputs * outputs / gpu.arithmetic
    processors = gpu.processors if kind == "waves" else 1
    each = 2 * inputs * processors / gpu.arithmetic  # seconds of a number of the output, on one of them
    return min(ceil(ceil(rows / tall) * ceil(outputs / wide) / processors) * tall * wide * each for tall, wide in TILES)


def seconds(gpu: Gpu, decoder: Decoder, rows: int, kind: str) -> float:
    """A pass over so many rows behind CONTEXT tokens."""
    found = CONTEXT * decoder.token_bytes / gpu.bandwidth
    for inputs, outputs, count in decoder.matrices:
        reading = _HALF * inputs * outputs / gpu.bandwidth
        found += count * max(reading, arithmetic(gpu, rows, inputs, outputs, kind))
    return found


def costs(gpu: Gpu, decoder: Decoder, kind: str = "waves", framework: float = 0.0) -> Costs:
    """The cost model of planners, from public figures; no pass is shorter than what the `framework` needs for it."""
    found = [max(seconds(gpu, decoder, rows, kind), framework) for rows in WIDTHS]
    return Costs(WIDTHS, tuple(max(found[: i + 1]) for i in range(len(found))))


def worth(curve: Costs, accepted: float, rows: int) -> float:
    """The speed-up that a mean of `accepted` tokens per pass of `rows` brings."""
    return accepted * curve.of(1) / curve.of(rows)


def run() -> dict[str, Any]:
    """Every case on every GPU that it may have run on."""
    return {
        "title": "What acceptance is worth, by public figures",
        "benchmark": "costs",
        "machine": machine.facts(),
        **machine.circumstances(),
        "notes": [" ".join((__doc__ or "").split("\n\n")[1].split())],
        "cases": [_case(case, gpu) for case in CASES for gpu in case.gpus],
    }


def _case(case: Case, gpu: Gpu) -> dict[str, Any]:
    decoder = VICUNA[case.model]
    curves = {kind: costs(gpu, decoder, kind) for kind in KINDS} | {
        "framework": costs(gpu, decoder, "waves", FRAMEWORK)
    }
    found = {kind: worth(curve, case.accepted, case.rows) for kind, curve in curves.items()}
    return {
        "method": case.method,
        "model": decoder.name,
        "gpu": gpu.name,
        "rows": case.rows,
        "accepted": case.accepted,
        "ms": [1e3 * curves["waves"].of(rows) for rows in (1, case.rows)],
        **found,
        "measured": case.measured,
        "error": found["waves"] / case.measured - 1,
    }


HEADER = ("method", "model", "GPU", "rows", "accepted", "T(1) ms", "T(rows) ms", *KINDS, "framework", "measured", "off")


def cells(case: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table; `off` is that of waves."""
    names = (*KINDS, "framework", "measured")
    figures = (f"{case['accepted']:.2f}", *(f"{ms:.1f}" for ms in case["ms"]), *(f"{case[n]:.2f}" for n in names))
    return (case["method"], case["model"], case["gpu"], str(case["rows"]), *figures, f"{case['error']:+.0%}")


def show(found: dict[str, Any]) -> None:
    """A row per case and GPU."""
    table = Table(title=found["title"], title_justify="left")
    for name in HEADER:
        table.add_column(name, justify="left" if name in HEADER[:3] else "right")
    for case in found["cases"]:
        table.add_row(*cells(case))
    paper().print(table)
