"""No token is computed that only pads: a pass has a row per pending token and node, however unequal requests are."""

import pytest

from forerun.testing.toy import Ask, Toy
from forerun.types import Sampling


@pytest.mark.parametrize("drafter", ["ngram:width=4,min_match=1", "draft-model:model=toy:100,depth=3,tree=level"])
def test_rows_are_tokens(drafter, monkeypatch):
    rig = Toy(drafter=drafter).build()
    runner, plans, passes = rig.engine.runner, list[list[int]](), list[int]()
    run, forward = runner.run, runner.model.forward

    def planned(work):
        plans.append([len(w.tokens) for w in work])
        return run(work)

    def counted(work, cache):
        passes.append(len(work.tokens))
        return forward(work, cache)

    monkeypatch.setattr(runner, "run", planned)
    monkeypatch.setattr(runner.model, "forward", counted)
    prompts = [(0,), (0, 1, 2, 0, 1), (2, 2, 2, 2), (1, 0) * 8]
    asks = [Ask(p, Sampling(max_tokens=9 + 3 * i, seed=i)) for i, p in enumerate(prompts)]
    rig.write(asks)
    stats = [event.stats for events in rig.said.values() for event in events if event.stats]
    needed = sum(map(len, prompts)) + sum(s.steps - 1 + s.drafted for s in stats)
    assert passes == [sum(tokens) for tokens in plans]
    assert sum(passes) == needed == rig.engine.stats.rows
    assert any(len(set(tokens)) > 2 for tokens in plans)  # requests did differ
