# What csrc/module.cpp defines. Addresses are those of contiguous memory that outlives the call; kinds are net.h's.

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Wholes: TypeAlias = npt.NDArray[np.int8]

LAYOUT: int  # how the bytes of tiles lie and which parts have which kind; files of packed weights hold it

def ring(button: int, answer: int, seconds: float) -> None: ...  # write, then wait until there is something to read
def race(p: Floats, first: int, second: int, ids: Ints | None = None) -> int: ...  # who wins; the key's halves
def draw(  # of a row of logits, float32, behind temperature and cut-offs, by a key's halves
    logits: int,
    vocab: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    epsilon: float,
    eta: float,
    first: int,
    second: int,
) -> int: ...
def chances(  # of rows of logits [rows, vocab], float32 -> float32
    logits: int,
    rows: int,
    vocab: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    epsilon: float,
    eta: float,
    out: int,
) -> None: ...
def bend(  # rows of logits [rows, vocab], float32 -> float32; a path behind the text for each; no bans or its own
    logits: int,
    rows: int,
    vocab: int,
    text: Sequence[int],
    prompt_length: int,
    paths: Sequence[Sequence[int]],
    repetition: float,
    presence: float,
    frequency: float,
    biased: Ints,
    biases: Doubles,
    allowed: Ints | None,
    bans: Sequence[Sequence[int]],
    out: int,
) -> None: ...

# For each row of logits [rows, vocab], float32: ids and chances of its likeliest tokens, and its entropy -> float64.
def ranks(logits: int, rows: int, vocab: int, count: int, out: int) -> None: ...

# Of a row of logits [vocab]: the first of the likeliest whose bit is set, -1 where there is none.
def likeliest(logits: Floats, bits: npt.NDArray[np.uint8]) -> int: ...
def count(bits: npt.NDArray[np.uint8]) -> int: ...  # how many are set
def places(bits: npt.NDArray[np.uint8], out: int) -> None: ...  # and which: int64 [count]

# Of a row of logits [vocab], float32: a token's log-probability and rank, and `count` likeliest tokens with theirs.
def logprob(logits: int, vocab: int, token: int, count: int) -> tuple[float, int, list[tuple[int, float]]]: ...

# For each seat, plan and output, (outcome, turn) where every token is the best one of its row, else None.
def said(
    seats: list[Any], plans: list[Any], outputs: list[Any], types: tuple[type, type, type, type]
) -> list[tuple[Any, Any] | None]: ...  # types: Verdict, Outcome, Emission, Turn
def isa() -> str: ...  # the best instruction set that was compiled and that this processor can run
def isas() -> list[str]: ...  # all of them, the best one first; "plain" is always there

# Memory of packed matrices.
class Arena:
    def __init__(self) -> None: ...
    def expect(self) -> None: ...  # all matrices are made and nothing is written yet: large pages from the start
    def settle(self) -> None: ...  # all matrices are filled: use large pages

# A weight matrix [outputs, inputs] in the order in which passes read it.
class Packed:
    def __init__(self, arena: Arena, kind: int, outputs: int, inputs: int, blank: bool = True) -> None: ...
    # Row i of the source becomes output to[i]; scales of whole numbers: 0 by the largest weight, 1 by least squares.
    def fill(self, source: int, kind: int, to: Ints, scales: int = 0) -> None: ...
    def codes(
        self, wholes: Wholes, multipliers: Wholes, scales: Floats, to: Ints
    ) -> None: ...  # net.h says what they mean
    def bias(self, values: Floats, to: Ints) -> None: ...
    def row(self, row: int, out: int) -> None: ...  # what an output holds, as floats [inputs]
    def spans(self, *, biased: bool = False) -> list[tuple[int, int]]: ...  # address, bytes of each
    @property
    def kind(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

# Threads that run passes together.
class Deal:
    def __init__(self, size: int) -> None: ...
    def among(self, size: int) -> None: ...
    def begin(self, who: int) -> None: ...
    def take(self, who: int, total: int, least: int, unit: int) -> tuple[int, int]: ...

class Team:
    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def coming(self) -> int: ...  # of its threads, to the last run

# How many threads of a team come to its next run.
class Turnout:
    def __init__(self, size: int) -> None: ...
    @property
    def now(self) -> int: ...
    # seconds that threads waited for one in a run, that it took, and when it ended
    def after(self, lost: float, took: float, at: float) -> None: ...

# A dense decoder; passes do not change it.
class Decoder:
    kind: int  # of the layers
    numel: int
    widths: list[int]
    def __init__(self, isa: str, sizes: list[int], numbers: list[float]) -> None: ...
    def rope(self, frequencies: list[float], beyond: list[float], scale: float, border: int) -> None: ...
    def layer(
        self,
        qkv: Packed,
        o: Packed,
        up: Packed,
        down: Packed,
        norms: list[Floats | None],
        qk_gain: Floats | None,
        rope: int,
        window: int,
    ) -> None: ...
    def ends(
        self,
        embedding: object,  # kept alive; None: the rows of the head, and the address is not looked at
        address: int,
        kind: int,
        positions: Floats | None,
        gain: Floats,
        bias: Floats | None,
        head: Packed,
    ) -> None: ...
    def copy(self) -> Decoder: ...
    def repeat(self, qkv: Packed, o: Packed, up: Packed, down: Packed) -> None: ...  # one more layer like the last

# The decoder over the strips of one cache, of a kind: rows of (keys, values, elements from head to head) per layer.
class Session:
    def __init__(self, decoder: Decoder, team: Team, kind: int, strips: Ints) -> None: ...
    def run(
        self,
        numbers: list[int],  # tokens, positions and wanted rows
        rows: int,
        segments: list[int],  # seven for each: start, count, past, base, address of its mask or 0, first run, runs
        runs: list[tuple[int, int]],  # first row in the cache, count
        logits: int,  # address
        num_wanted: int,
        layers: Sequence[int] | None,
        hidden: list[tuple[int, int]],  # place in the order of layers, address
    ) -> tuple[
        list[int], list[float], list[float]
    ]: ...  # per row of logits: its best token, that one's logit, its mass
    def follow(  # passes in a row, all layers each; what they have found, one after the other
        self,
        numbers: list[int],  # tokens, positions and wanted rows of every pass
        # where in these a pass begins; rows, segments, runs, logits and num_wanted as above; behind the first, in which
        # row of the pass before each row's token is found
        passes: list[tuple[int, int, list[int], list[tuple[int, int]], int, int, list[int]]],
    ) -> tuple[list[int], list[float], list[float]]: ...
    def grow(  # best trees, one below each segment
        self,
        numbers: list[int],  # tokens, positions and wanted rows of the first pass, one row of each segment
        rows: int,
        segments: list[int],
        runs: list[tuple[int, int]],  # with room for all that may be read behind the segments
        rules: list[tuple[int, int, float]],  # as `types.Best` has them
    ) -> list[tuple[list[int], list[int], list[float], list[int], list[int], bool]]: ...  # `types.Grown`

def read(team: Team, address: int, nbytes: int) -> float: ...  # seconds to read a buffer once, all threads together
def xxh64(address: int, nbytes: int) -> int: ...  # the checksum of that name, seed 0
