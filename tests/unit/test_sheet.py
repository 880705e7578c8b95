"""Answers asked ahead are those of the rows on the host: same numbers, same verdict, same law, one transfer a pass."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forerun import host
from forerun.decoders.contract import Plan
from forerun.errors import RequestError
from forerun.growth import Growth
from forerun.kernels.race import winner
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose
from forerun.sampling import Rows
from forerun.sheet import Sheet
from forerun.testing import Ask, BushyDrafter, Toy, distance, outcomes
from forerun.trees import TREES
from forerun.trees.chain import ChainTree
from forerun.types import Context, Dist, Draft, Output, Sampling, Work
from forerun.verifiers import VERIFIERS

V = 11
CHAIN, FORKS = (-1, 0, 1, 2), (-1, -1, -1, 0, 0, 1, 3, 3)
SAMPLINGS = {
    "plain": Sampling(),
    "cut": Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02),
    "bans": Sampling(bad_words=((3,), (1, 2)), repetition_penalty=1.3, logit_bias={4: 2.0, 5: -1.0}),
    "few": Sampling(allowed_tokens=(1, 2, 7), no_repeat_ngram=2),
    "greedy": Sampling(temperature=0, bad_words=((3,),), presence_penalty=0.5),
}
BENT = ("bans", "few", "greedy")  # what may be drawn depends on the tokens before it, which the host has to see
FETCH = host.fetch
AHEAD = ("match", "rejection")  # verifiers of which everything is asked ahead; the others may fetch rows


class Waiting(TorchDispatchMode):
    """Which operations ran that hand a device's number to the host by themselves."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "bincount")

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        places = args[1] if name in {"index", "index_put_"} else ()
        by_mask = any(isinstance(at, torch.Tensor) and at.dtype is torch.bool for at in places)
        if name.startswith(self.NAMES) or by_mask:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def test_an_operation_that_waits_is_seen():
    with Waiting() as waiting:
        assert torch.ones(3).sum().item() == 3
        assert torch.ones(3)[torch.ones(3) > 0].shape == (3,)
    assert waiting.seen == {"_local_scalar_dense", "index"}


def row_of(rng):
    """A distribution of a few tokens or of many."""
    mass = rng.dirichlet(np.ones(V)) * (rng.random(V) < rng.choice([0.5, 1.0]))
    mass[rng.integers(V)] += 0.1
    return (mass / mass.sum()).astype(np.float32)


def draft_of(rng, parents, kind):
    """Tokens chosen, or drawn from a dense q, or from one that lies with other logits."""
    tokens, q = [], []
    for _ in parents:
        row = row_of(rng)
        token = int(rng.choice(V, p=row.astype(np.float64) / row.astype(np.float64).sum()))
        if kind == "far":
            context = Context(0, (1,), 1, Sampling(), CounterRng(int(rng.integers(1 << 30))))
            look = Growth(context, 1, 1, ChainTree(None, None).grow).newest
            logits = torch.from_numpy(np.log(row + 1e-9))[None]
            look.read(Output(logits, (0,), (0.0,), answers=host.fetch(look(logits))))
            child = look.child(0)
            q.append(child.q)
            token = child.token
        elif kind == "sparse":
            ids = np.flatnonzero(row)
            q.append(Dist(row[ids], ids))
        else:
            q.append(Dist(row))
        tokens.append(token)
    drawn = None if kind == "chosen" else tuple(q)
    return Draft(tuple(tokens), parents, drawn)


def both(sampling, draft, seed):
    """(rows on the host, answers asked ahead) for the same logits and numbers."""
    logits = torch.randn(len(draft) + 1, V, generator=torch.Generator().manual_seed(seed)) * 2
    context = Context(0, (1, 3, 1), 2, sampling, CounterRng(seed))
    hidden = {-1: torch.randn(len(draft) + 3, 7, generator=torch.Generator().manual_seed(seed))}
    output = Output(logits, tuple(logits.argmax(-1).tolist()), tuple(logits.amax(-1).tolist()), hidden=hidden)
    sheet = Sheet(context, draft, (0,))

    def ask():
        answered = output._replace(answers=host.fetch(sheet(logits)))
        return Plan(Work(0, ()), draft, sheet).target(answered, context, (0,))

    return Rows(output, context, draft, (0,)), ask, context.rng


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["chosen", "dense", "sparse", "far"])
@pytest.mark.parametrize("parents", [(), CHAIN, FORKS], ids=["nothing", "chain", "tree"])
def test_same_numbers_same_verdict(sampling, kind, parents, monkeypatch):
    met = set()
    for seed in range(40):
        draft = draft_of(np.random.default_rng(seed), parents, kind)
        near, ask, rng = both(SAMPLINGS[sampling], draft, seed)
        rules = [(name, rule(rule.toy())) for name, rule in VERIFIERS.items()]
        expected = [rule.verify([draft], [near], [rng]) for _, rule in rules]
        far, fetched = ask(), []
        for name in ("forerun.host.fetch", "forerun.sheet.fetch"):
            monkeypatch.setattr(name, lambda tensor, seen=fetched: seen.append(tensor) or FETCH(tensor))
        for (name, rule), verdict in zip(rules, expected, strict=True):
            fetched.clear()
            assert rule.verify([draft], [far], [rng]) == verdict
            assert name not in AHEAD or not fetched
            met.add((name, verdict[0].path))
        monkeypatch.undo()
    if parents and sampling == "plain":
        assert "rejection" in {name for name, path in met if path}, "nothing was accepted; the test shows nothing"


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_soft_rows_are_those_of_the_host(sampling):
    draft = draft_of(np.random.default_rng(3), FORKS, "chosen")
    near, ask, _ = both(SAMPLINGS[sampling], draft, 3)
    far = ask()
    for node in range(-1, len(draft)):
        assert np.array_equal(far.soft(node).probs, near.soft(node).probs)
        assert np.array_equal(far.hidden(-1, node), near.hidden(-1, node))
    assert list(far.text) == list(near.text) == [1, 3, 1]


def test_what_was_not_asked_is_fetched():
    draft = draft_of(np.random.default_rng(1), FORKS, "dense")
    near, ask, rng = both(Sampling(), draft, 1)
    far, q = ask(), Dist(row_of(np.random.default_rng(2)))
    for node in range(-1, len(draft)):
        assert np.array_equal(far[node].probs, near[node].probs)
        assert [far[node].prob(t) for t in range(V)] == [near[node].prob(t) for t in range(V)]
        assert np.array_equal(far[node].minus(q).probs, near[node].minus(q).probs)
        assert rng.categorical(far[node], Purpose.DRAFT, 5) == rng.categorical(near[node], Purpose.DRAFT, 5)
    refused = [p[-1].minus(draft.drawn_from(0)).minus(draft.drawn_from(1)) for p in (far, near)]
    assert refused[0].far is not None
    np.testing.assert_allclose(refused[0].probs, refused[1].probs, rtol=1e-6)


def test_a_draw_on_a_device_is_the_one_of_the_host():
    p = np.array([0, 0.25, 0, 0.25, 0.5, 0], np.float32)
    seen = set()
    for key in range(0, 1 << 64, 1 << 58):
        sheet = Sheet(Context(0, (1,), 1, Sampling(), CounterRng(0)))
        sheet.numbers = [key]
        found = sheet.read(host.fetch(sheet(torch.from_numpy(p).log()[None])))
        assert found[-1].far.drawn(key) == winner(Dist(p), key)
        assert found[-1].far.drawn(key + 1) is None
        seen.add(winner(Dist(p), key))
    assert seen == {1, 3, 4}


def test_bans_that_leave_nothing_are_found():
    nothing = Sampling(bad_words=tuple((token,) for token in range(V)))
    with pytest.raises(RequestError, match="leave no token"):
        both(nothing, Draft(), 0)[1]()
    late = Sampling(bad_words=tuple((7, token) for token in range(V)))
    context = Context(0, (1,), 1, late, CounterRng(0))
    sheet = Sheet(context, Draft((7, 2), (-1, 0)))
    assert sheet.read(host.fetch(sheet(torch.zeros(3, V)))).stuck == {0}


@pytest.mark.parametrize("verifier", ["match", "rejection"])
@pytest.mark.parametrize("drafter", ["ngram:min_match=1", "draft-model:model=toy:100,depth=2", BushyDrafter])
@pytest.mark.parametrize("bans", [(), ((0, 0), (0, 1), (0, 2))], ids=["free", "dead ends"])
def test_padded_passes_have_the_law_of_plain_decoding(drafter, verifier, bans):
    sampling = Sampling(max_tokens=3, bad_words=bans)

    def law(engine):
        def run(rngs):
            texts = engine.build().write([Ask((0, 1, 2, 0, 1), sampling, rng) for rng in rngs])
            return [(text.tokens, text.finish_reason) for text in texts]

        return outcomes(run, 32)

    drafted = Toy(drafter=drafter, verifier=verifier)
    assert distance(law(drafted.plain()), law(drafted.resized(passes="padded"))) < 1e-9


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "drafter",
    [
        "none",
        "ngram:min_match=1",
        *(f"draft-model:model=toy:100:11,depth=3,tree={tree}" for tree in TREES if tree != "sequoia"),
        "draft-model:model=toy:100:11,depth=3,tree=(sequoia:price=0)",
    ],
)
def test_a_seed_writes_the_same_text_padded_and_ragged_and_waits_seldom(drafter, sampling, monkeypatch):
    engine = Toy(drafter=drafter, model=ToyModel(V, 4))
    asks = [Ask((1, 2, 3)[: 1 + i], replace(SAMPLINGS[sampling], seed=i, max_tokens=15)) for i in range(3)]
    ragged = engine.build().write(asks)
    fetched, real = [], host.fetch

    def counted(tensor):
        fetched.append(tensor)
        return real(tensor)

    for module in ("host", "sheet", "sampling", "look"):
        monkeypatch.setattr(f"forerun.{module}.fetch", counted)
    rig = engine.resized(passes="padded").build()
    with Waiting() as waiting:
        padded = rig.write(asks)
    assert not waiting.seen
    assert [t.tokens for t in padded] == [t.tokens for t in ragged]
    assert rig.engine.stats.draft_failures == 0
    levels = 8 if "dyspec" in drafter else 3  # a node of its first levels may be drawn late
    if "tree" not in drafter:
        levels = 0
    elif drafter.endswith("chain") and sampling not in BENT:
        levels = 1  # the device goes on by itself
    assert 3 < len(fetched) <= (1 + levels) * rig.engine.stats.steps  # the target's, and one per level of a draft
