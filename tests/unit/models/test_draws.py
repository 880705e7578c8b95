"""What a pass draws on its way is what would be drawn from the rows it leaves, whatever shares the pass."""

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from forerun import sampling as sampling_module
from forerun.caches.contiguous import ContiguousCache
from forerun.engine.runner import ModelRunner
from forerun.errors import RequestError
from forerun.kernels import native
from forerun.kernels.cuts import chances
from forerun.llm import LLM
from forerun.models.load import load_model
from forerun.rng import CounterRng, Purpose
from forerun.sampling import Rows
from forerun.sheet import Ahead, lot
from forerun.types import Constraint, Context, Draft, Lot, Output, Sampling, Work
from forerun.verifiers.match import MatchVerifier

pytestmark = pytest.mark.skipif(native.load() is None, reason="the extension was not built here")
VOCAB, EOS, PROMPT, DEPTH = 700, (5,), 4, 5
TOKEN = st.integers(0, VOCAB - 1)
OPTIONS = {
    "temperature": st.sampled_from([0.0, 0.5, 1.3]),
    "top_k": st.sampled_from([3, 60]),
    "top_p": st.sampled_from([0.4, 0.95]),
    "min_p": st.just(0.05),
    "typical_p": st.just(0.9),
    "epsilon_cutoff": st.just(0.002),
    "eta_cutoff": st.just(0.002),
    "repetition_penalty": st.just(1.4),
    "presence_penalty": st.just(0.4),
    "frequency_penalty": st.just(-0.3),
    "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-50.0, 4.0]), max_size=4),
    "allowed_tokens": st.lists(TOKEN, min_size=1, max_size=99).map(tuple),
    "bad_words": st.lists(TOKEN.map(lambda token: (token,)), max_size=4).map(tuple),
    "no_repeat_ngram": st.just(2),
    "min_tokens": st.just(90),
}
SAMPLING = st.builds(lambda options: Sampling(**options), st.fixed_dictionaries({}, optional=OPTIONS))
REQUEST = st.tuples(st.lists(TOKEN, min_size=PROMPT, max_size=30), SAMPLING, st.integers(0, 2**40))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    small = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = transformers.AutoConfig.for_model("llama", **small, num_attention_heads=2, initializer_range=0.5)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return [load_model(folder, "auto", "cpu", threads) for threads in (1, 2)]


def begun(requests):
    return [
        Context(number, tokens, PROMPT, sampling, CounterRng(seed))
        for number, (tokens, sampling, seed) in enumerate(requests)
    ]


def passed(model, contexts):
    """Outputs of one pass over all texts."""
    runner = ModelRunner(model, ContiguousCache(ContiguousCache.Options(), model.info.layout, len(contexts), 40))
    works = []
    for context in contexts:
        slot, _ = runner.cache.open(())
        runner.cache.reserve(slot, len(context.tokens))
        works.append(Work(slot, tuple(context.tokens), logits=(len(context.tokens) - 1,), lot=lot(context, eos=EOS)))
    return works, runner.run(works)


def behind(context, output):
    """What is drawn from a row, without what the pass has drawn; None where no token is left."""
    try:
        rows = Rows(output._replace(drawn=()), context, Draft(), EOS)
        return context.rng.categorical(rows[-1], Purpose.TARGET, 0)
    except RequestError:
        return None


@given(st.lists(REQUEST, min_size=1, max_size=5), st.sampled_from([0, 1]))
def test_a_pass_draws_what_its_rows_say(models, requests, threads):
    contexts = begun(requests)
    for context, work, output in zip(contexts, *passed(models[threads], contexts), strict=True):
        s = context.sampling
        assert (work.lot is None) == (s.greedy and not s.bends and not s.min_tokens)
        if work.lot is None:
            assert output.drawn == ()
            continue
        token = behind(context, output)
        assert [one[:2] for one in output.drawn] == ([] if token is None else [(*work.lot.keys, token)])


def test_nobody_draws_behind_a_pass_what_it_has_drawn(models, monkeypatch):
    contexts = begun([([1, 2, 3, 4, 5], Sampling(temperature=t, presence_penalty=0.3), 7) for t in (0, 0.8)])
    _, outputs = passed(models[0], contexts)
    right = [behind(*one) for one in zip(contexts, outputs, strict=True)]
    for context, output, token in zip(contexts, outputs, right, strict=True):
        whole = Rows(output._replace(drawn=()), context, Draft(), EOS)[-1].prob(token)
        with monkeypatch.context() as alone:
            alone.setattr(sampling_module, "bend", None)
            rows = Rows(output, context, Draft(), EOS)
            assert context.rng.categorical(rows[-1], Purpose.TARGET, 0) == token
        assert rows[-1].prob(token) == pytest.approx(whole)


def test_another_key_draws_from_p(models):
    (context,) = begun([([1, 2, 3, 4, 5], Sampling(temperature=1.5), 7)])
    _, (output,) = passed(models[0], [context])
    told = Rows(output._replace(drawn=(output.drawn[0]._replace(token=-7),)), context, Draft(), EOS)
    other = replace(context, rng=CounterRng(8))
    assert context.rng.categorical(told[-1], Purpose.TARGET, 0) == -7
    assert other.rng.categorical(told[-1], Purpose.TARGET, 0) == behind(other, output)


def opened(model, slots):
    return ModelRunner(model, ContiguousCache(ContiguousCache.Options(), model.info.layout, slots, 60))


def drafted(model, context, places):
    """A tree of likely tokens: each place says how many nodes back a parent is, and which of the likeliest follows."""
    runner, tokens, parents = opened(model, 1), list[int](), list[int]()
    for back, rank in places:
        parent, path = max(-1, len(tokens) - 1 - back), list[int]()
        at = parent
        while at >= 0:
            path.insert(0, tokens[at])
            at = parents[at]
        slot, _ = runner.cache.open(())
        text = (*context.tokens, *path)
        runner.cache.reserve(slot, len(text))
        (output,) = runner.run([Work(slot, text, logits=(len(text) - 1,))])
        runner.cache.close(slot)
        tokens.append(int(output.logits[0].topk(4).indices[rank]))
        parents.append(parent)
    return Draft(tuple(tokens), tuple(parents))


PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=7)
FREE = {name: some for name, some in OPTIONS.items() if name in ("top_p", "min_p", "typical_p")}
DRAFTED = st.tuples(st.lists(TOKEN, min_size=PROMPT, max_size=9), st.fixed_dictionaries({}, optional=FREE), PLACES)


@given(st.lists(st.tuples(DRAFTED, st.integers(0, 2**40)), min_size=1, max_size=3))
def test_a_pass_goes_down_a_draft_as_long_as_it_draws_nodes(models, requests):
    runner, contexts, works, drafts = opened(models[1], len(requests)), [], [], []
    for number, ((tokens, options, places), seed) in enumerate(requests):
        contexts.append(Context(number, tokens, PROMPT, Sampling(top_k=4, **options), CounterRng(seed)))
        drafts.append(draft := drafted(models[0], contexts[-1], places))
        slot, _ = runner.cache.open(())
        runner.cache.reserve(slot, len(tokens) + len(draft))
        rows = tuple(range(len(tokens) - 1, len(tokens) + len(draft)))
        parents = (*range(-1, len(tokens) - 1), *(len(tokens) + parent for parent in draft.parents))
        asked = lot(contexts[-1], draft, EOS)
        works.append(Work(slot, (*tokens, *draft.tokens), parents, logits=rows, lot=asked))
    for context, draft, output in zip(contexts, drafts, runner.run(works), strict=True):
        rows, node, depth, drawn = Rows(output._replace(drawn=()), context, draft, EOS), -1, 0, {}
        while node is not None:
            drawn[node + 1] = context.rng.categorical(rows[node], Purpose.TARGET, depth)
            below = [child for child in draft.children(node) if draft.tokens[child] == drawn[node + 1]]
            node, depth = below[0] if below else None, depth + 1
        assert {row: one.token for row, one in enumerate(output.drawn) if one is not None} == drawn
        verdicts = [
            MatchVerifier(MatchVerifier.Options()).verify([draft], [Rows(told, context, draft, EOS)], [context.rng])
            for told in (output, output._replace(drawn=()))
        ]
        assert verdicts[0] == verdicts[1]


def row_of(runner, seed, tokens, **options):
    """A request's slot, and what draws its first tokens, one after the other."""
    slot, _ = runner.cache.open(())
    runner.cache.reserve(slot, len(tokens) + DEPTH)
    sampling = Sampling(**options)
    return slot, [Lot(sampling, (CounterRng(seed).ahead(Purpose.TARGET, i),), odds=True) for i in range(DEPTH)]


def chain_of(runner, rows, tokens, found):
    """Passes that read what the ones before have drawn, as far as `found` knows it."""
    for level in range(DEPTH):
        past = tuple(range(-1, level - 1))
        yield [
            Work(slot, tokens, logits=(len(tokens) - 1,), lot=lots[0])
            if not level
            else Work(slot, (found.get(slot, 0),), past, level - 1, (0,), lot=lots[level])
            for slot, lots in rows
        ]
        if not level:
            for slot, _ in rows:
                runner.cache.keep(slot, tokens, range(len(tokens)))


@pytest.mark.parametrize("options", [{}, {"top_k": 30, "top_p": 0.8, "temperature": 0.7}], ids=["all", "cut"])
def test_passes_in_a_row_draw_what_they_draw_one_by_one(models, options):
    tokens, runs = (1, 2, 3, 4), list[list[Output]]()
    for model, together in ((models[0], False), (models[1], True)):
        cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 3, 40)
        runner, found = ModelRunner(model, cache), dict[int, int]()
        rows = [row_of(runner, seed, tokens, **options) for seed in (5, 6)]
        rows.append((row_of(runner, 7, tokens, **options)[0], [None] * DEPTH))  # what it reads is the best
        if together:
            runs.append([output for outputs in runner.follow(chain_of(runner, rows, tokens, {})) for output in outputs])
            continue
        runs.append([])
        for works in chain_of(runner, rows, tokens, found):
            outputs = runner.run(works)
            for (slot, _), output in zip(rows, outputs, strict=True):
                found[slot] = output.drawn[0].token if output.drawn else output.best[0]
            runs[-1] += outputs
    alone, row = runs
    assert [(o.best, o.peak, o.drawn) for o in row] == [(o.best, o.peak, o.drawn) for o in alone]
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(row, alone, strict=True))
    for output in (output for output in alone if output.drawn):
        p = chances(output.logits, Sampling(**options))[0]
        (drawn,) = output.drawn
        assert drawn.chance == p[drawn.token]
        assert drawn.norm == pytest.approx(float(p.double().norm()))


def test_a_token_outside_the_vocabulary_is_refused(models):
    contexts = begun([([1, 2, 3, 4, 5], Sampling(presence_penalty=0.3, logit_bias={VOCAB: 1.0}), 7)])
    with pytest.raises(ValueError, match="no such token"):
        passed(models[0], contexts)


TEXTS = [
    {},
    {"temperature": 0.7, "top_p": 0.9, "logprobs": 1},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.5, "min_tokens": 12, "logit_bias": {17: 3.0}},
    {"constraint": Constraint("regex", "[a-z ]{20,30}")},
    {"constraint": Constraint("regex", "[a-z ]{20,30}"), "top_k": 9},
]


def written(engine, prompt):
    """Tokens and log-probabilities of all texts, side by side."""
    numbers = [engine.add(prompt, Sampling(max_tokens=24, seed=seed, **options)) for seed, options in enumerate(TEXTS)]
    found = {number: [] for number in numbers}
    while engine.busy:
        for event in engine.step():
            found[event.request] += [(emission.token, emission.logprob) for emission in event.emissions]
    return list(found.values())


PLAIN, DRAFTS = {"decoder": "autoregressive", "drafter": "none"}, {"drafter": "token-recycling"}


@pytest.mark.parametrize("chosen", [PLAIN, DRAFTS], ids=["plain", "drafts"])
def test_texts_are_those_that_are_drawn_behind_passes(chosen, monkeypatch):
    llm = LLM("reference", max_requests=8, planner="fixed:nodes=3", verifier="match", **chosen)
    decoder, runner = llm.engine.members.decoder, llm.engine.runner
    prompt, run, lots = llm.tokenizer.encode("Once upon a time there was"), runner.run, list[int]()

    def watched(works):
        lots.append(sum(work.lot is not None for work in works))
        return run(works)

    monkeypatch.setattr(runner, "run", watched)
    assert decoder.parts.ahead is Ahead.DRAWS
    drawn = written(llm.engine, prompt)
    assert max(lots) == len(TEXTS) - 1  # a constraint with a cut-off is for a mask
    lots.clear()
    monkeypatch.setattr(decoder, "parts", replace(decoder.parts, ahead=Ahead.NOTHING))
    assert written(llm.engine, prompt) == drawn
    assert set(lots) == {0}
    assert all(len(tokens) > 4 for tokens in drawn)
