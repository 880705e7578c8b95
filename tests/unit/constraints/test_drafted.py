"""Random schemas under random drafts: a guide stands where a fresh one stands that read the committed tokens alone.

Drafts hold what is forbidden, and ends with more behind them; requests lose their place; walks are interrupted.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.build import guides_for, setup_for
from forerun.config import Config
from forerun.drafters.contract import SoloDrafter
from forerun.errors import RequestError
from forerun.kernels.masks import packed
from forerun.kernels.race import winner
from forerun.models.toy import ToyModel
from forerun.rng import CounterRng, Purpose
from forerun.sampling import Rows, Shaper
from forerun.testing import Ask, Toy
from forerun.types import Constraint, Context, Dist, Draft, Facts, Output, Sampling

WORDS = (*'{}[]":,-. 019ab\n', '{"', '":', "tr", "ue", "true", "null", "1.", "<end>")
EOS, STEPS, MOST = len(WORDS) - 1, 2000, 24
MODEL = ToyModel(words=WORDS, eos=(EOS,), seed=3)
SETUP = setup_for(Config(), MODEL)
GUIDES = guides_for(SETUP)
LEAVES = st.sampled_from(
    [
        *({"type": kind} for kind in ("boolean", "null", "integer", "number")),
        {"type": "string", "maxLength": 3},
        {"enum": [1, "a", None]},
        {"type": "integer", "minimum": 0, "maximum": 19},
    ]
)


def holding(inner):
    objects = st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(
        lambda p: {"type": "object", "properties": p, "required": [*p], "additionalProperties": False}
    )
    arrays = inner.map(lambda item: {"type": "array", "items": item, "maxItems": 2})
    return objects | arrays | st.lists(inner, min_size=2, max_size=2).map(lambda some: {"anyOf": some})


SCHEMAS = st.recursive(LEAVES, holding, max_leaves=4)


class Scattered(SoloDrafter):
    """Trees of random tokens, half of them such as the constraint allows; ends are followed like any other."""

    facts = Facts()

    @dataclass(frozen=True)
    class Options:
        """At most `width` nodes."""

        width: int = 7

    def __init__(self, options, setup):
        self.options, self.vocab = options, setup.vocab

    def propose_one(self, context, budget):
        rng = np.random.default_rng((context.id, len(context.tokens)))
        paths, parents = [()], []
        while len(parents) < min(budget, self.options.width):
            parent = int(rng.integers(len(paths)))
            allowed = np.flatnonzero(context.guide.masks([paths[parent]])[0])
            some = allowed if len(allowed) and rng.random() < 0.5 else np.arange(self.vocab)
            path = (*paths[parent], int(rng.choice(some)))
            if path in paths:
                break
            paths.append(path)
            parents.append(parent - 1)
        return Draft(tuple(path[-1] for path in paths[1:]), tuple(parents), source="scattered")


def fresh(wish, tokens, ends=frozenset({EOS})):
    guide = GUIDES(wish, ends)
    for token in tokens:
        guide.advance(token)
    return guide


def same(guide, other):
    """Whether both stand at the same place, as far as masks tell, and beginnings of what may follow."""
    paths = [(), *((token,) for token in range(len(WORDS)))]
    return (
        np.array_equal(guide.masks(paths), other.masks(paths))
        and guide._matcher.may_end() == other._matcher.may_end()
        and guide.written == other.written
        and not guide.trouble
    )


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "judged"])
def test_a_guide_knows_committed_tokens_alone(cut, monkeypatch):
    if not cut:
        monkeypatch.setattr(Draft, "possible", lambda draft, _: draft)
    toy = Toy(drafter=Scattered, model=MODEL, planner="fixed:nodes=7", cache="paged:block_size=4,blocks=9")
    told = dict.fromkeys(("steps", "drafted", "preempted", "complete"), 0)
    numbers = count()

    @settings(max_examples=30)
    @given(st.lists(SCHEMAS, min_size=3, max_size=3), st.sampled_from([0.0, 1.0]))
    def write(schemas, temperature):
        rig = toy.build()
        wishes = [Constraint("json_schema", json.dumps(schema)) for schema in schemas]
        asked = [Sampling(temperature=temperature, max_tokens=MOST, constraint=wish) for wish in wishes]
        rig_numbers = [rig.add(Ask((0, 1), replace(one, seed=next(numbers)))) for one in asked]
        while rig.engine.busy:
            rig.step()
            told["steps"] += len(rig.engine.requests)
            for request in rig.engine.requests.values():
                written = request.tokens[request.prompt_length :]
                assert same(request.guide, fresh(request.sampling.constraint, written))
        told["preempted"] += rig.engine.stats.preemptions
        for number, schema in zip(rig_numbers, schemas, strict=True):
            text = rig.text(number)
            told["drafted"] += sum(len(event.draft or ()) for event in rig.said[number])
            assert text.error is None
            if text.finish_reason == "stop":
                told["complete"] += 1
                written = "".join(WORDS[token] for token in text.tokens if token != EOS)
                jsonschema.validate(json.loads(written), schema)

    while told["steps"] < STEPS / 2:
        write()
    assert told["drafted"] > told["steps"]
    assert told["preempted"] > 10, told
    assert told["complete"] > 10


class HaltError(Exception):
    """What a watchdog raises inside a walk."""


@given(SCHEMAS, st.randoms(use_true_random=False))
def test_looking_ahead_changes_nothing(schema, random):
    """Whatever is asked, on which thread and how far a walk came."""
    wish, text = Constraint("json_schema", json.dumps(schema)), list[int]()
    guide = GUIDES(wish, frozenset({EOS}))
    for _ in range(8):
        paths = [tuple(random.choices(range(len(WORDS)), k=random.randrange(4))) for _ in range(6)]
        paths += [(int(token), *path) for token in np.flatnonzero(guide.masks([()])[0])[:3] for path in paths[:3]]
        other = fresh(wish, text)
        guide.foresee(paths)
        if random.random() < 0.5:
            interrupted(guide, paths, random.randrange(6))
        wanted = {path: bool(path) and bool(other.masks([path[:-1]])[0, path[-1]]) for path in paths if path}
        assert guide.allows(list(wanted)) == list(wanted.values())
        assert np.array_equal(guide.masks(paths), other.masks(paths))
        forced = guide.forced((), 4)
        assert forced == other.forced((), 4)
        assert not forced or guide.allows([tuple(forced)]) == [True]
        choices = [t for t in np.flatnonzero(guide.masks([()])[0]).tolist() if t != EOS]
        if not choices:
            return
        text.append(random.choice(choices))
        assert guide.advance(text[-1]) == other.advance(text[-1])


@given(SCHEMAS, st.randoms(use_true_random=False))
def test_greedy_rows_are_those_of_all_masks(schema, random):
    """Of every node, whether its best token is allowed or not; masks are asked for only where it is not."""
    wish, numbers = Constraint("json_schema", json.dumps(schema)), torch.Generator().manual_seed(random.randrange(99))
    context = Context(0, [0], 1, Sampling(temperature=0.0, constraint=wish), CounterRng(0), guide=fresh(wish, []))
    asked = counted(context.guide)
    for _ in range(8):
        wanted = Shaper(context.sampling, context.tokens, 1, (EOS,), fresh(wish, context.tokens[1:]))
        draft = Draft.chain([random.randrange(len(WORDS)) for _ in range(random.choice((0, 3)))])
        count = len(draft) + 1
        logits = torch.randn(count, len(WORDS), generator=numbers)
        right = random.random() < 0.5
        if right:
            allowed = wanted.guide.masks([draft.tokens[:row] for row in range(count)])
            logits = torch.where(torch.from_numpy(allowed | ~allowed.any(-1, keepdims=True)), logits, -9.0)
        best = logits.argmax(-1).tolist()
        bent, stuck = bent_along(wanted, logits, draft)
        if stuck[0]:
            return
        asked.clear()
        rows = Rows(Output(logits, tuple(best), (0.0,) * count), context, draft, (EOS,))
        assert rows.stuck == {row - 1 for row in range(count) if stuck[row]}
        assert [rows[row - 1].only for row in range(count)] == bent.argmax(-1).tolist()
        assert len(asked) == bool(stuck.any() or best != bent.argmax(-1).tolist()) + stuck.sum()
        token = rows[-1].only
        if token == EOS or context.guide.advance(token):
            return
        context.tokens.append(token)


@given(SCHEMAS, st.randoms(use_true_random=False))
def test_draws_are_those_from_all_masks(schema, random):
    """Of every node, by any key; masks are asked for where its best token or the free row's draw is forbidden."""
    wish, numbers = Constraint("json_schema", json.dumps(schema)), torch.Generator().manual_seed(random.randrange(99))
    sampling = Sampling(temperature=random.choice((0.7, 1.0)), constraint=wish)
    context = Context(0, [0], 1, sampling, CounterRng(random.randrange(99)), guide=fresh(wish, []))
    asked = counted(context.guide)
    for step in range(8):
        context.rng.begin(step, step)
        wanted = Shaper(sampling, context.tokens, 1, (EOS,), fresh(wish, context.tokens[1:]))
        draft = Draft.chain([random.randrange(len(WORDS)) for _ in range(random.choice((0, 3)))])
        logits = torch.randn(len(draft) + 1, len(WORDS), generator=numbers)
        bent, stuck = bent_along(wanted, logits, draft)
        if stuck[0]:
            return
        rights, best = wanted.shape(bent).numpy(), tuple(logits.argmax(-1).tolist())
        keys = [context.rng.ahead(Purpose.TARGET, depth) for depth in range(len(best))]
        free = [winner(Dist(p), key) for p, key in zip(wanted.shape(logits).numpy(), keys, strict=True)]
        asked.clear()
        rows = Rows(Output(logits, best, (0.0,) * len(best)), context, draft, (EOS,))
        drawn = [context.rng.categorical(rows[depth - 1], Purpose.TARGET, depth) for depth in range(len(best))]
        assert drawn == [winner(Dist(p), key) for p, key in zip(rights, keys, strict=True)]
        doubtful = [p[token] == 0 for p, token in zip(rights, best, strict=True)] | stuck.numpy()
        refused = [p[token] == 0 for p, token in zip(rights, free, strict=True)] & ~doubtful
        assert len(asked) == doubtful.any() + refused.sum() + stuck.numpy().sum()
        assert rows.stuck == {row - 1 for row in stuck.nonzero()[:, 0].tolist()}
        assert all(
            np.allclose(rows[row - 1].at(np.arange(len(p))), p, rtol=1e-6, atol=0) for row, p in enumerate(rights)
        )
        if drawn[0] == EOS or context.guide.advance(drawn[0]):
            return
        context.tokens.append(drawn[0])


def bent_along(shaper, logits, draft):
    """Rows of a chain, bent with all masks, and in which of them no token is left."""
    bent, stuck = shaper.bent(logits, lambda row: draft.tokens[:row])
    return bent, torch.zeros(len(bent), dtype=torch.bool) if stuck is None else stuck


class Said:
    """A guide that allows what a mask [rows, vocab] has, by the length of the path."""

    written, trouble = 0, ""

    def __init__(self, allowed):
        self.allowed = allowed

    def masks(self, paths):
        return self.allowed[[len(path) for path in paths]]

    def bits(self, paths):
        return [packed(mask) for mask in self.masks(paths)]

    def allows(self, paths):
        return [bool(self.allowed[len(path) - 1, path[-1]]) for path in paths]


@given(
    st.integers(0, 10**6), st.sampled_from((0.0, 0.1, 0.6, 0.95)), st.sampled_from((-2, 8)), st.sampled_from((0.0, 1.0))
)
def test_what_is_left_is_found_however_much_it_is(seed, share, least, temperature):
    """Rows with equal and with impossible tokens, under masks that leave nothing, few and most; never the best one."""
    numbers, vocab, draft = torch.Generator().manual_seed(seed), 30, Draft.chain([1, 2, 3])
    logits = torch.randint(-4, 9, (4, vocab), generator=numbers).float()
    logits[logits < least] = -torch.inf
    logits[:, 7] = 8
    allowed = (torch.rand(4, vocab, generator=numbers) < share).numpy()
    best = tuple(logits.argmax(-1).tolist())
    allowed[range(4), best] = False
    sampling = Sampling(temperature=temperature, constraint=Constraint("regex", "a"))
    context = Context(0, [0], 1, sampling, CounterRng(seed), guide=Said(allowed))
    before, shaper = logits.clone(), Shaper.of(context)
    bent, stuck = bent_along(shaper, logits, draft)
    if stuck[0]:
        with pytest.raises(RequestError, match="no token to draw"):
            Rows(Output(logits, best, (0.0,) * 4), context, draft)
        return
    rows = Rows(Output(logits, best, (0.0,) * 4), context, draft)
    assert rows.stuck == {row - 1 for row in stuck.nonzero()[:, 0].tolist()}
    for row, p in enumerate(shaper.shape(bent).numpy()):
        found = [rows[row - 1].prob(token) for token in range(vocab)]
        assert np.allclose(found, p, rtol=1e-6, atol=0)
    assert logits.equal(before)


@pytest.mark.parametrize("wish", [Constraint("regex", "a|ab*"), Constraint("choice", "a,ab,b")], ids=lambda w: w.name)
@pytest.mark.parametrize("masked_before", [True, False])
def test_bits_are_the_mask_an_end_included(wish, masked_before):
    """Of a matcher that makes bits, and of one that makes masks."""
    guide, other = fresh(wish, ()), fresh(wish, ())
    assert (guide._matcher.bits() is None) == (wish.name == "choice")
    paths = [(), (WORDS.index("a"),), (WORDS.index("b"),), (WORDS.index("9"),)]
    if masked_before:
        guide.masks(paths)
    wanted = other.masks(paths)
    assert wanted[1, EOS]
    assert not wanted[0, EOS]
    assert not wanted[3].any()
    for bits, mask in zip(guide.bits(paths), wanted, strict=True):
        assert np.array_equal(bits, packed(mask))
    assert np.array_equal(guide.masks(paths), wanted)


def counted(guide):
    """What masks are asked of it, as bits or not."""
    asked, masks, bits = [], guide.masks, guide.bits
    guide.masks = lambda paths: asked.append(paths) or masks(paths)
    guide.bits = lambda paths: asked.append(paths) or bits(paths)
    return asked


def test_masks_are_foreseen_where_they_were_asked_for_and_a_core_is_left():
    wish = Constraint("json_schema", '{"type": "boolean"}')
    for beside in (True, False):
        guide = guides_for(SETUP, beside=beside)(wish, frozenset({EOS}))
        guide.foresee([(WORDS.index("tr"),)])
        assert (guide._ahead is not None) is beside
        guide.foresee([(WORDS.index("true"),)])
        assert guide._ahead is None, "nobody has asked since"


def interrupted(guide, paths, after):
    """A walk that ends with an exception behind so many pushes."""
    matcher = guide._matcher
    push, left = matcher.push, [after]

    def halting(token):
        taken = push(token)
        left[0] -= 1
        if left[0] < 0 and taken:
            raise HaltError
        return taken

    guide.masks([()])  # what runs on the other thread is done
    matcher.push = halting
    for ask in (guide.allows, guide.masks, lambda some: guide.forced(some[-1], 4)):
        left[0] = after
        with suppress(HaltError):
            ask([(*path, 0) for path in paths])
    del matcher.push
