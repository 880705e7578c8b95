"""A desk: a cache, and beside it in plain Python lists what each of its slots must hold."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pytest
import torch

from forerun.engine.batch import pack
from forerun.layers.kv_rows import encode
from forerun.types import KVLayout, Work

CPU = torch.device("cpu")
LAYOUT = KVLayout(heads=(2, 1, 2), dims=(4, 2, 4), dtype=torch.float32, device=CPU)


def follow(value: int, token: int) -> int:
    """What a model would store for `token`: it depends on everything before."""
    return (value * 31 + token * 7 + 1) % 65521


def rows(values: Sequence[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [heads, len(values), dim]; every element differs, and all are exact in float32."""
    heads, dim = LAYOUT.heads[layer], LAYOUT.dims[layer]
    offsets = (torch.arange(heads * dim).view(heads, 1, dim) + 16 * layer) / 256
    keys = torch.tensor(values, dtype=torch.float32).view(1, -1, 1) + offsets
    return keys, -keys


@dataclass
class Held:
    scope: str
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int, int]] = field(default_factory=list)  # unjudged: token, parent, value

    @property
    def last(self) -> int:
        return self.values[-1] if self.values else int.from_bytes(self.scope.encode()) % 65521

    def node_value(self, parent: int) -> int:
        return self.nodes[parent][2] if parent >= 0 else self.last

    def path_to(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.nodes[node][1]
        return path[::-1]


def held(part, kept):
    """What a cache makes of keys or values."""
    if kept == torch.int8:
        whole, scale = encode(part)
        return whole * scale
    return part.to(kept).to(part.dtype) if kept else part


@lru_cache(maxsize=1000)  # most slots hold after a rule what they held before it
def stored(values, layer, kept):
    """What a cache makes of all of these values."""
    return [held(part, kept) for part in rows(values, layer)]


class Desk:
    def __init__(self, cls, options, slots=3, length=24, kept=None):
        self.kept = kept
        self.cache = cls(options, replace(LAYOUT, kept=kept), slots, length)
        self.slots, self.length, self.empty = slots, length, self.cache.free()
        self.held: dict[int, Held] = {}

    def rows(self, values, layer):
        return stored(tuple(values), layer, self.kept)

    def open(self, tokens, scope=""):
        slot, found = self.cache.open(tokens, scope)
        assert slot not in self.held
        assert 0 <= found < max(1, len(tokens))
        held = self.held[slot] = Held(scope, list(tokens))
        for token in tokens[:found]:
            self._commit(held, token)
        return slot

    @staticmethod
    def _commit(held, token):
        held.values.append(follow(held.last, token))
        held.tokens.append(token)

    def fill(self, tokens, scope=""):
        """Open a slot and commit its whole prompt."""
        slot = self.open(tokens, scope)
        rest = tokens[len(self.held[slot].tokens) :]
        if rest:
            assert self.draft({slot: (rest, None)})
            self.keep(slot, range(len(rest)))
        return slot

    def draft(self, drafts, finish=True):
        """One pass over several slots: slot -> tokens and parents (None: a chain). False where there is no room."""
        for slot, (tokens, _) in drafts.items():
            before = self.cache.free(), self.cache.unjudged(slot)
            if not self.cache.reserve(slot, len(tokens)):
                assert before == (self.cache.free(), self.cache.unjudged(slot))
                return False
        work = [self._work(slot, *draft) for slot, draft in drafts.items()]
        nodes = {slot: self._grown(slot, *draft) for slot, draft in drafts.items()}
        plan = pack(work, self.cache, CPU)
        new = [node[2] for w in work for node in nodes[w.slot][w.base :]]
        for layer in range(self.cache.num_layers):
            keys, values = rows(new, layer)
            self.cache.write(layer, plan, keys.transpose(0, 1), values.transpose(0, 1))
            for segment in plan.segments:
                expected = self.held[segment.slot].values + [node[2] for node in nodes[segment.slot]]
                same(self.cache.read(layer, segment), self.rows(expected, layer))
        if finish:
            self.cache.advance(plan.segments)
            for slot in drafts:
                self.held[slot].nodes = nodes[slot]
        return True

    def _parents(self, slot, tokens, parents):
        base = len(self.held[slot].nodes)
        return list(range(base - 1, base + len(tokens) - 1)) if parents is None else parents

    def _work(self, slot, tokens, parents):
        held = self.held[slot]
        all_parents = [node[1] for node in held.nodes] + self._parents(slot, tokens, parents)
        return Work(slot, tuple(tokens), tuple(all_parents), len(held.nodes))

    def _grown(self, slot, tokens, parents):
        held = self.held[slot]
        trial = Held(held.scope, [], held.tokens, held.values, list(held.nodes))
        for token, parent in zip(tokens, self._parents(slot, tokens, parents), strict=True):
            trial.nodes.append((token, parent, follow(trial.node_value(parent), token)))
        return trial.nodes

    def keep(self, slot, path):
        held = self.held[slot]
        tokens = [held.nodes[node][0] for node in path]
        self.cache.keep(slot, tokens, list(path))
        for token in tokens:
            self._commit(held, token)
        held.nodes = []

    def rollback(self, slot, mark):
        self.cache.rollback(slot, mark)
        held = self.held[slot]
        del held.tokens[mark:], held.values[mark:]
        held.nodes = []

    def fork(self, slot):
        held = self.held[slot]
        twin = self.cache.fork(slot)
        assert twin not in self.held
        self.held[twin] = Held(held.scope, list(held.prompt), list(held.tokens), list(held.values))
        return twin

    def close(self, slot, sound=True):
        self.cache.close(slot, sound=sound)
        del self.held[slot]

    def close_all(self):
        for slot in list(self.held):
            self.close(slot)

    def compare(self):
        """Every slot holds exactly what it must, and the books balance."""
        self.cache.check()
        for slot, held in self.held.items():
            assert self.cache.length(slot) == len(held.tokens) == self.cache.checkpoint(slot)
            assert self.cache.unjudged(slot) == len(held.nodes)
            for layer, pair in enumerate(self.cache.snapshot(slot)):
                same(pair, self.rows(held.values, layer))


def same(got, expected):
    for mine, other in zip(got, expected, strict=True):
        assert torch.equal(mine, other), "a slot holds what it must not"


@pytest.fixture
def desk():
    return Desk
