"""A tree that a cache cannot hold is refused when the engine is built."""

from dataclasses import replace

import pytest

from forerun.caches import CACHES
from forerun.errors import ConfigError
from forerun.testing import Ask, Toy
from forerun.trees import TREES
from forerun.types import Need, Sampling

CONTIGUOUS = CACHES["contiguous"]


class ChainCache(CONTIGUOUS):
    """Holds chains only."""

    facts = replace(CONTIGUOUS.facts, branches=False)


BRANCHING = [name for name in TREES if Need.BRANCHING in TREES[name].facts.needs]


@pytest.mark.parametrize("tree", BRANCHING)
def test_a_tree_needs_a_cache_that_can_branch(tree):
    drafter = f"draft-model:model=toy:100,tree={tree}"
    Toy(drafter=drafter).build()
    with pytest.raises(
        ConfigError, match=f"tree '{tree}' needs a cache that can branch, and cache 'ChainCache' cannot; use"
    ):
        Toy(drafter=drafter, cache=ChainCache).build()


@pytest.mark.parametrize("drafter", ["several", "cascade-drafting:of=[(several:of=[ngram]),ngram]"])
def test_so_does_a_drafter_wherever_it_stands(drafter):
    with pytest.raises(ConfigError, match="'several.* needs a cache that can branch"):
        Toy(drafter=drafter, cache=ChainCache).build()


@pytest.mark.parametrize(
    "drafter", ["draft-model:model=toy:100,tree=level,cache=chains", "staged:model=toy:100,cache=chains"]
)
def test_so_does_the_cache_of_a_small_model(drafter, monkeypatch):
    class Row:
        name, load = "chains", staticmethod(lambda: ChainCache)

    monkeypatch.setattr("forerun.registry.entry_points", lambda group: [Row] if group == "forerun.caches" else [])
    with pytest.raises(ConfigError, match="needs a cache that can branch, and cache 'chains' cannot"):
        Toy(drafter=drafter).build()


@pytest.mark.parametrize(
    "drafter", ["none", "ngram", "draft-model:model=toy:100", "draft-model:model=toy:100,tree=svip"]
)
def test_chains_are_welcome(drafter):
    Toy(drafter=drafter, cache=ChainCache).build()


def test_every_tree_that_branches_says_so():
    """What is not refused above never branches: the fact is true of every row."""
    assert BRANCHING
    for name in set(TREES) - set(BRANCHING):
        rig = Toy(drafter=f"draft-model:model=toy:100,tree={name},depth=4").build()
        seen = []
        guard = rig.engine.members.drafter
        propose = guard.inner.propose
        guard.inner.propose = lambda *given: seen.extend(found := propose(*given)) or found
        rig.write([Ask((0, 1, 2), Sampling(max_tokens=20, seed=1))])
        assert seen
        assert all(draft.parents == tuple(range(-1, len(draft) - 1)) for draft in seen)
