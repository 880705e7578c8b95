"""A decoder <-> a file of packed weights, which is read straight into the memory that passes read.

Pieces are named layers.I.PART and ends.PART; a matrix has its scales and biases beside it. Rope is made of config.json,
whose values are part of the file by their checksum, because what lies here was arranged by them.
Does not: read or write a family that the compiled passes do not cover.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from forerun.errors import ConfigError, ModelError
from forerun.kernels import native
from forerun.models.contract import ModelInfo
from forerun.models.native import (
    COARSE,
    HALF,
    HEADS,
    INT4,
    INT8,
    KINDS,
    TILE,
    EndParts,
    LayerParts,
    NativeTransformer,
    Parts,
    Vector,
    decoder,
)
from forerun.models.recipe import TransformerConfig
from forerun.weights.load import trim
from forerun.weights.packed import NAME, PackedFile, Writer, checksum_of

WORDS = {KINDS[dtype]: str(dtype).removeprefix("torch.") for dtype in KINDS} | {INT8: "int8", INT4: "int4"}
DTYPES = {"int8": INT8, "int4": INT4, "bf16": KINDS[torch.bfloat16]}  # precisions that a folder can have
SAME = {"bfloat16": "bf16"}
MATRICES = ("qkv", "o", "up", "down")
NORMS = ("attention", "attention_post", "mlp", "mlp_post")
FLOAT = "float32"


def digest(values: dict[str, Any]) -> str:
    """A checksum of what a config.json says, however it is laid out."""
    return checksum_of(json.dumps(values, sort_keys=True).encode())


class Span(NamedTuple):
    """One array that is stored."""

    name: str
    kind: str
    shape: tuple[int, ...]
    where: tuple[int, int]  # address and bytes


def _matrix(name: str, made: Any, *, biased: bool) -> Iterator[Span]:  # noqa: ANN401 - a class of the extension
    weights, scales, biases = made.spans(biased=biased)
    yield Span(name, WORDS[made.kind], (made.outputs, made.inputs), weights)
    for word, where in (("scales", scales), ("biases", biases)):
        if where[1]:
            yield Span(f"{name}.{word}", FLOAT, (where[1] // 4,), where)


def _vector(name: str, values: Vector) -> Iterator[Span]:
    if values is not None:
        yield Span(name, FLOAT, (values.size,), (values.ctypes.data, values.nbytes))


def _norm(name: str, gain: Vector, bias: Vector) -> Iterator[Span]:
    yield from _vector(f"{name}.gain", gain)
    yield from _vector(f"{name}.bias", bias)


def layer_spans(index: int, parts: LayerParts) -> Iterator[Span]:
    """What is stored of a layer."""
    place = f"layers.{index}."
    for name, made in zip(MATRICES, (parts.qkv, parts.o, parts.up, parts.down), strict=True):
        yield from _matrix(place + name, made, biased=False)
    for i, name in enumerate(NORMS):
        yield from _norm(place + name, parts.norms[2 * i], parts.norms[2 * i + 1])
    yield from _vector(f"{place}qk_gain", parts.qk_gain)


def end_spans(parts: EndParts) -> Iterator[Span]:
    """What is stored of the ends."""
    yield from _matrix("ends.head", parts.head, biased=False)
    yield from _norm("ends.norm", *parts.norm)
    yield from _vector("ends.positions", parts.positions)
    if parts.embed is not None:
        embed = parts.embed.contiguous()
        kind = WORDS[KINDS[embed.dtype]]
        yield Span("ends.embed", kind, tuple(embed.shape), (embed.data_ptr(), embed.nbytes))


def write_parts(writer: Writer, config: TransformerConfig, parts: Parts) -> Iterator[int]:
    """Write every part; yields the number of each layer that is done, so that its memory can be given back."""
    for index in range(config.num_layers):
        made = parts.layer(index)
        for span in layer_spans(index, made):
            writer.add(*span)
        del made
        yield index
    ends = parts.ends()
    for span in end_spans(ends):
        writer.add(*span)


class Stored:
    """The parts of a decoder from a file; everything is read, and checked, before the first is given."""

    def __init__(self, config: TransformerConfig, file: PackedFile, kind: int) -> None:
        self.config, self.file, self.kind, self.nbytes = config, file, kind, 0
        module: Any = native.load()
        self._packed, self.arena = module.Packed, module.Arena()
        self._layers = [self._layer(index) for index in range(config.num_layers)]
        self._ends = self._both_ends()
        self.arena.expect()
        file.read()

    def layer(self, index: int) -> LayerParts:
        return self._layers[index]

    def ends(self) -> EndParts:
        return self._ends

    def _layer(self, index: int) -> LayerParts:
        c, place = self.config, f"layers.{index}."
        width = c.num_heads * c.head_dim
        turning = (c.num_heads + c.num_kv_heads) * c.head_dim
        qkv = self._matrix(f"{place}qkv", turning + c.num_kv_heads * c.head_dim, c.hidden_size)
        o = self._matrix(f"{place}o", c.hidden_size, width)
        outputs = -(-c.ffn_size // HALF) * TILE if c.gated else c.ffn_size
        up = self._matrix(f"{place}up", outputs, c.hidden_size)
        down = self._matrix(f"{place}down", c.hidden_size, c.ffn_size)
        norms = [vector for name in NORMS for vector in self._norm(place + name)]
        return LayerParts(qkv, o, up, down, norms, self._vector(f"{place}qk_gain", turning))

    def _both_ends(self) -> EndParts:
        c = self.config
        head = self._matrix("ends.head", c.vocab_size, c.hidden_size, HEADS.get(self.kind))
        positions = self._vector("ends.positions", c.context_length * c.hidden_size)
        return EndParts(self._embed(), positions, self._norm("ends.norm"), head)

    def _matrix(self, name: str, outputs: int, inputs: int, kind: int | None = None) -> Any:  # noqa: ANN401 - a class of the extension
        made = self._packed(self.arena, kind or self.kind, outputs, inputs, blank=False)
        for span in _matrix(name, made, biased=f"{name}.biases" in self.file.pieces):
            self.file.want(*span)
        self.nbytes += made.nbytes
        return made

    def _norm(self, name: str) -> tuple[Vector, Vector]:
        hidden = self.config.hidden_size
        return self._vector(f"{name}.gain", hidden), self._vector(f"{name}.bias", hidden)

    def _vector(self, name: str, size: int) -> Vector:
        if name not in self.file.pieces:
            return None
        values = np.empty(size, np.float32)
        for span in _vector(name, values):
            self.file.want(*span)
        return values

    def _embed(self) -> torch.Tensor | None:
        """The rows of tokens as a view of the file, like a checkpoint's."""
        piece, shape = self.file.pieces.get("ends.embed"), (self.config.vocab_size, self.config.hidden_size)
        if piece is None:
            return None
        dtype = next((dtype for dtype, kind in KINDS.items() if WORDS[kind] == piece.kind), torch.float32)
        nbytes = shape[0] * shape[1] * dtype.itemsize
        self.file.want("ends.embed", WORDS[KINDS[dtype]], shape, (0, nbytes))
        return torch.frombuffer(self.file.view("ends.embed"), dtype=dtype).view(shape)


def open_packed(folder: Path, values: dict[str, Any]) -> PackedFile | None:
    """The packed weights of a folder whose config.json says `values`; None: it has none."""
    path = folder / NAME
    if not path.is_file():
        return None
    module: Any = native.load()
    if module is None:
        message = f"{folder} holds packed weights, which only compiled passes run ({native.describe()})"
        raise ConfigError(f"{message}; load the model that it was made of.")
    file = PackedFile(path)
    layout = file.facts.get("layout")
    if layout != module.LAYOUT or file.facts.get("dtype") not in DTYPES:
        message = f"{path} has weights in layout {layout!r} of {file.facts.get('dtype')!r:.40}"
        message = f"{message}, and this build reads layout {module.LAYOUT} of {', '.join(DTYPES)}"
        raise ModelError(f"{message}; make it again with this forerun's quantize.")
    if file.facts.get("config") != digest(values):
        message = f"{path} was made with another config.json than the one beside it"
        raise ModelError(f"{message}; put that one back, or make the folder again with forerun quantize.")
    return file


def dtype_of(file: PackedFile, asked: str, device: str, name: str) -> str:
    """The precision to run a packed folder in; ConfigError where another one, or a GPU, was asked for."""
    if torch.device(device).type != "cpu":
        message = f"{name} is packed for compiled passes, which run on the CPU, and device {device!r} was asked for"
        raise ConfigError(f"{message}; use device='cpu', or load the model that it was made of.")
    found: str = file.facts["dtype"]
    if found == "int8" and asked in ("w8a8", "fastest"):
        return "w8a8"  # the same weights
    if asked not in ("auto", "fastest") and SAME.get(asked, asked) != found:
        message = f"dtype {asked!r} was asked for and {name} is packed as {found}"
        raise ConfigError(f"{message}; use dtype='auto', or make it again with forerun quantize --dtype {asked}.")
    return found


def assemble_packed(
    config: TransformerConfig, file: PackedFile, info: ModelInfo, threads: int, dtype: str
) -> NativeTransformer:
    """The decoder that a file of packed weights makes, in a precision of `dtype_of`."""
    stored = Stored(config, file, DTYPES[file.facts["dtype"]])
    made = decoder(config, stored, stored.arena, exact=dtype not in COARSE)
    trim()
    info = replace(info, weight_bytes=stored.nbytes, rounded=dtype)
    return NativeTransformer(config, info, made, threads)
