"""A tree that a cache cannot hold is refused when the engine is built."""

import re
from dataclasses import replace
from types import SimpleNamespace

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


CHAINS = [name for name in TREES if name not in BRANCHING]
SMALL = "draft-model:model=toy:100,tree={}"
CANNOT = "needs a cache that can branch, and cache '{}' cannot; use one that can"


@pytest.mark.parametrize("tree", BRANCHING)
def test_a_tree_needs_a_cache_that_can_branch(tree):
    Toy(drafter=SMALL.format(tree)).build()
    with pytest.raises(ConfigError, match=f"tree '{tree}' {CANNOT.format('ChainCache')}"):
        Toy(drafter=SMALL.format(tree), cache=ChainCache).build()


@pytest.mark.parametrize("drafter", ["several", "cascade-drafting:of=[(several:of=[ngram]),ngram]"])
def test_so_does_a_drafter_wherever_it_stands(drafter):
    with pytest.raises(ConfigError, match=re.escape(CANNOT.format("ChainCache"))):
        Toy(drafter=drafter, cache=ChainCache).build()


@pytest.mark.parametrize("drafter", [SMALL.format("level,cache=chains"), "staged:model=toy:100,cache=chains"])
def test_so_does_the_cache_of_a_small_model(drafter, monkeypatch):
    row = SimpleNamespace(name="chains", load=lambda: ChainCache)
    monkeypatch.setattr(CACHES, "plugins", {"chains": row})
    with pytest.raises(ConfigError, match=CANNOT.format("chains")):
        Toy(drafter=drafter).build()


@pytest.mark.parametrize("tree", CHAINS)
def test_a_tree_that_does_not_say_so_drafts_chains(tree):
    """The fact is true of every row, and chains are welcome."""
    rig = Toy(drafter=SMALL.format(tree), cache=ChainCache).build()
    drafts, inner = [], rig.engine.members.drafter.inner
    propose = inner.propose
    inner.propose = lambda *given: drafts.extend(found := propose(*given)) or found
    rig.write([Ask((0, 1, 2), Sampling(max_tokens=20, seed=1))])
    assert any(len(draft) > 1 for draft in drafts)
    assert all(draft.parents == tuple(range(-1, len(draft) - 1)) for draft in drafts)
