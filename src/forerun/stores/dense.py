"""A dense datastore: texts, and where each of their tokens lies among the target's hidden states, for the nearest.

States of the last layer are centred and scaled per dimension, projected on their principal components and brought to
unit length (2502.15572, section 3.1); the index over them is usearch's graph (HNSW), mapped and not read into memory.
`toy:0` is a small one, made on the spot.
Does not: see that another model of the same tokenizer and size wrote the states: its neighbours are then far off.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import ConfigError
from forerun.stores import tokenfile
from forerun.stores.corpus import open_corpus
from forerun.stores.tokenfile import Tokens
from forerun.types import Floats, Ints, Setup

KIND = "dense datastore"
REMEDY = "make one for this model with forerun datastore build --dense"
LAYER = -1  # whose states are looked up
CONNECTED, EXPANDED = 16, 64  # neighbours of a state in the graph, and how many are held while it is made


@dataclass(frozen=True, eq=False)
class Projection:
    """Hidden states -> short rows of unit length, whose products say how near states are."""

    mean: Floats  # [hidden]
    matrix: Floats  # [hidden, dims]

    def __call__(self, states: Floats) -> Floats:
        """[n, hidden] -> [n, dims]."""
        rows = (states - self.mean) @ self.matrix
        short: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return short


def fit(states: Floats, dims: int) -> Projection:
    """On the principal components of scaled states [n, hidden]."""
    mean, scale = states.mean(0), states.std(0) + 1e-6
    scaled = (states - mean) / scale
    _, components = np.linalg.eigh(scaled.T @ scaled)
    matrix = components[:, ::-1][:, :dims] / scale[:, None]
    return Projection(mean.astype(np.float32), np.ascontiguousarray(matrix, np.float32))


def index_of(dims: int) -> Any:  # noqa: ANN401 - a usearch Index
    """An empty one; ConfigError where the library is missing."""
    try:
        from usearch.index import Index
    except ImportError as missing:
        message = f"dense datastores need usearch, which cannot be imported ({missing})"
        raise ConfigError(f"{message}; pip install 'forerun[dense]', or use drafter='rest'.") from missing
    return Index(
        ndim=dims,
        metric="ip",
        dtype="f16",
        connectivity=CONNECTED,
        expansion_add=EXPANDED,
        expansion_search=1,  # or as many as are asked for
    )


class Dense:
    """Texts and the index of their states; END after every document."""

    def __init__(self, tokens: Tokens, projection: Projection, index: Any) -> None:  # noqa: ANN401 - a usearch Index
        self.tokens, self.projection, self._index = tokens, projection, index

    def near(self, states: Floats, count: int) -> list[Ints]:
        """Places of the tokens that the target read in the most similar way, of each row of `states` [n, hidden]."""
        short = self.projection(states)
        found = (self._index.search(row, count, threads=1).keys for row in short)
        return [places.astype(np.int64) for places in found]

    def write(self, out: Path, facts: dict[str, Any]) -> None:
        """The whole file, or none."""
        graph = self._index.save()
        padded = np.frombuffer(graph + bytes(-len(graph) % 4), np.int32)
        size = dict(zip(("hidden", "dims"), self.projection.matrix.shape, strict=True))
        numbers = (part.ravel().view(np.int32) for part in (self.projection.mean, self.projection.matrix))
        tokenfile.write(out, KIND, {**facts, **size}, [self.tokens, *numbers, padded], "name another file with --out")


def open_dense(name: str, setup: Setup, who: str) -> Dense:
    """The dense datastore that an option of `who` names; ConfigError where it is unfit for the target."""
    if not name:
        raise ConfigError(f"{who} needs a dense datastore and none is named; {REMEDY}.")
    if name.startswith("toy:"):
        return _toy(name, setup, who)
    mark = tokenfile.mark_of(setup.open_spelling(""))
    table, (tokens, mean, matrix, graph) = tokenfile.read(Path(name), KIND, mark, REMEDY)
    if table["hidden"] != setup.hidden_size:
        message = f"{name!r} has states of {table['hidden']} numbers and this model's have {setup.hidden_size}"
        raise ConfigError(f"{message}; {REMEDY}.")
    center, flat = (part.astype(np.int32).view(np.float32) for part in (mean, matrix))
    index = index_of(table["dims"])
    index.view(graph.data.cast("B"))  # of the mapped file, which `tokens` holds open
    return Dense(tokens, Projection(center, flat.reshape(-1, table["dims"])), index)


def _toy(name: str, setup: Setup, who: str) -> Dense:
    """Of random states."""
    tokens, rng = open_corpus(name, setup, who).tokens, np.random.default_rng(0)
    states = rng.normal(size=(len(tokens), setup.hidden_size))
    return dense_of(tokens, fit(states, 2), [(np.arange(len(tokens)), states)])


def dense_of(tokens: Tokens, projection: Projection, parts: Iterable[tuple[Ints, Floats]]) -> Dense:
    """An index over states by the places of their tokens."""
    index = index_of(projection.matrix.shape[1])
    for places, states in parts:
        short = projection(states).astype(np.float32)
        index.add(places.astype(np.uint64), short, threads=1)  # so that the same texts make the same graph
    return Dense(tokens, projection, index)
