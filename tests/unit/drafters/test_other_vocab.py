"""A draft model with another vocabulary: any text, any tokens, the same guesses as with the same vocabulary."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from forerun import LLM
from forerun.build import setup_for
from forerun.config import Config
from forerun.drafters.other_vocab import WINDOW, OtherVocabDrafter
from forerun.errors import ConfigError
from forerun.models.load import NAMED
from forerun.models.toy import ToyModel, toy_by_name
from forerun.rng import CounterRng
from forerun.testing import Toy, laws
from forerun.types import Context, Sampling

SENTENCEPIECE = Path(__file__).resolve().parents[4] / "shared" / "data" / "models" / "stories260k-tok512"
GREEDY = Sampling(temperature=0, max_tokens=48)
PROMPTS = {
    "story": "Once upon a time, there was a little girl named Lily.",
    "code": "def add(a, b):\n",
    "characters": "Ünïcödé 😀 日本",
}
CHAT = [{"role": "user", "content": "Tell me a story about a dog."}]


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory):
    """The bundled drafter under other token ids: another vocabulary that writes the same."""
    folder, source = tmp_path_factory.mktemp("shuffled"), NAMED["reference-drafter"]
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocab, added = tokenizer["model"]["vocab"], {token["id"] for token in tokenizer["added_tokens"]}
    plain = np.array(sorted(set(vocab.values()) - added))
    new = np.arange(len(vocab))
    new[plain] = np.random.default_rng(0).permutation(plain)
    tokenizer["model"]["vocab"] = {text: int(new[i]) for text, i in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(source / "model.safetensors")
    for name in [n for n in weights if len(weights[n]) == len(vocab)]:  # embeddings, and the head where it has its own
        weights[name] = weights[name][np.argsort(new)].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


@pytest.fixture(scope="module")
def plain():
    return LLM("reference", drafter="none")


def with_drafter(plain, spelled):
    return LLM(plain.model, plain.tokenizer, drafter=spelled, planner="fixed")


@pytest.mark.parametrize("method", ["tli", "slrs"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, max_tokens=48, repetition_penalty=1.1, top_k=30)])
def test_other_ids_for_the_same_tokens_change_nothing(plain, shuffled, method, sampling):
    """Text, verdicts and steps are those of the draft model whose vocabulary is the target's."""
    same = with_drafter(plain, "draft-model:tree=chain,depth=4,dtype=fp32")
    other = with_drafter(plain, f"other-vocab:model={shuffled},method={method},depth=4,dtype=fp32")
    accepted = {}
    for name, prompt in PROMPTS.items():
        want, got = (llm.generate([prompt], sampling)[0] for llm in (same, other))
        assert got.tokens == want.tokens
        assert got.stats.accepted_at == want.stats.accepted_at
        accepted[name] = want.stats.accepted
    assert min(accepted["story"], accepted["code"]) > 0


@pytest.mark.parametrize("method", ["slem", "tli", "slrs"])
@pytest.mark.parametrize("model", ["shuffled", "sentencepiece"])
def test_greedy_text_is_plain_decodings(plain, shuffled, method, model):
    if model == "sentencepiece" and not SENTENCEPIECE.is_dir():
        pytest.skip("needs the stories260k model in ../shared/data/models")
    folder = shuffled if model == "shuffled" else SENTENCEPIECE
    llm = with_drafter(plain, f"other-vocab:model={folder},method={method}")
    prompts = [*map(llm.encode, PROMPTS.values()), llm.tokenizer.chat(CHAT)]
    found, wanted = llm.generate(prompts, GREEDY), plain.generate(prompts, GREEDY)
    assert [r.tokens for r in found] == [r.tokens for r in wanted]
    assert llm.engine.stats.draft_failures == 0
    story, chat = found[0].stats, found[-1].stats
    assert story.tokens_per_step > 1.3
    assert chat.tokens_per_step > 1.3


TARGETS = ("toy:0:3", "toy:1:a+b+ab", "toy:2:a+b+c+bc")  # letters; words; words that the drafter lacks


@pytest.mark.parametrize("method", ["slem", "tli"])  # the contract tests have slrs
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("passes", ["ragged", "padded"])
def test_laws_of_toys_with_other_words(target, method, passes):
    spelled = f"other-vocab:model=toy:100:a+b+c+ab+ca,depth=2,method={method}"
    toy = Toy(drafter=spelled, model=toy_by_name(target)).resized(passes=passes)
    laws.a_draft_is_a_draft(toy)
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(toy, sampling)
    laws.greedy_equals_greedy(toy)
    laws.cancelling_is_free(toy)


@pytest.mark.parametrize("way", ["q of the intersection before it is scaled to one", "a link to another token"])
def test_a_false_q_is_seen(monkeypatch, way):
    """The law can fail: each of these misreports what a token was drawn from, or links what is not the same."""
    spelled = "other-vocab:model=toy:100:a+b+c+ab+ca,depth=2,method=tli"
    toy = Toy(drafter=spelled, model=toy_by_name("toy:0:3"))
    draw = OtherVocabDrafter._draw

    def misreport(drafter, growth, depth, output):
        draw(drafter, growth, depth, output)
        if growth.q[-1] is not None:
            q = growth.q[-1].probs * 0.8
            growth.q[-1] = type(growth.q[-1])(q)

    def mislink(drafter, growth, depth, output):
        draw(drafter, growth, depth, output)
        growth.tokens[-1] = (growth.tokens[-1] + 1) % 3

    monkeypatch.setattr(OtherVocabDrafter, "_draw", misreport if way.startswith("q") else mislink)
    with pytest.raises(laws.LawError):
        laws.exact_is_true(toy, laws.SAMPLINGS["plain"])


# Reading: a vocabulary of bytes, so that every place in a text can be tried


class Bytes:
    """A spelling in which words, spaces and the halves of a character are tokens of their own."""

    def __init__(self, *pieces, begin=(), lead=b""):
        self.pieces = pieces
        self.ids = {piece: i for i, piece in reversed(list(enumerate(pieces))) if piece}
        self.begin, self.lead = list(begin), lead

    def spell(self, tokens):
        parts = []
        for piece in (self.pieces[token] if token < len(self.pieces) else None for token in tokens):
            if isinstance(piece, bytes) and parts and isinstance(parts[-1], bytes):
                parts[-1] += piece
            elif piece is not None:
                parts.append(piece)
        return parts

    def encode(self, data, *, first=False):
        ids, data = [], (self.lead if first else b"") + data
        while data:
            fitting = [piece for piece in self.ids if isinstance(piece, bytes) and data.startswith(piece)]
            best = max(fitting, key=len, default=b"")
            ids += [self.ids[best]] if best else []
            data = data[len(best) or 1 :]
        return ids


TARGET = Bytes(b"a", b"b", b" a", b" ab", b"\xc3", b"\xa9", "<end>", "<mine>", None, b" ")
OWN = Bytes("<begin>", b"a", b"ab", b" ", b"\xc3", b"\xa9", b"\xc3\xa9", "<end>", begin=[0])


def drafter(own=OWN, target=TARGET, **options):
    """The drafter over toys whose tokens write what these spellings say."""
    setup = setup_for(Config(max_requests=2), ToyModel(len(target.pieces)))
    setup = replace(setup, open_spelling=lambda folder: own if folder else target)
    return OtherVocabDrafter(OtherVocabDrafter.Options(model=f"toy:3:{len(own.pieces)}", **options), setup)


def asked(made, *tokens, sampling=GREEDY):
    context = Context(0, list(tokens), len(tokens), sampling, CounterRng(0))
    return replace(context, state=made.start(context))


@pytest.mark.parametrize(
    ("tokens", "own"),
    [
        ((0, 1), [0, 2]),  # one token where the target has two
        ((0, 4), [0, 1, 4]),  # half a character
        ((0, 4, 5), [0, 1, 6]),  # which is whole now
        ((0, 7, 1, 0), [0, 1, 1]),  # a special token that the drafter lacks, and a letter that it lacks
        ((0, 6, 0, 1), [0, 1, 7, 2]),  # one that both have
        ((0, 8, 1), [0, 2]),  # an id without a token
        ((7, 8), [0]),  # nothing but the beginning
    ],
)
def test_what_the_drafter_reads(tokens, own):
    made = drafter()
    context = asked(made, *tokens)
    assert made._text(context) == own
    draft = made.propose([context], [4])[0]
    draft.check(len(TARGET.pieces), 4)
    assert context.state.read[: len(own)] == own


def test_the_space_that_a_vocabulary_puts_before_a_text_is_none():
    made = drafter(target=Bytes(*TARGET.pieces, lead=b" "))
    assert made._text(asked(made, 2, 2)) == [0, 1, 3, 1]
    assert made._text(asked(made, 2)) == [0, 1]
    spaced = drafter(own=Bytes(*OWN.pieces, begin=[0], lead=b" "))
    assert spaced._text(asked(spaced, 0, 2)) == [0, 3, 1, 3, 1]


def test_a_beginning_that_the_text_has_is_not_put_before_it():
    target = Bytes("<begin>", b"a", b"ab", b" ")
    made = drafter(target=target)
    assert made._text(asked(made, 0, 1)) == [0, 1]
    assert made._text(asked(made, 1)) == [0, 1]


def test_the_cache_goes_back_to_where_the_texts_part():
    made = drafter()
    context = asked(made, 0, 3)
    made.propose([context], [4])
    cache = made.runner.cache
    for tokens, own in (((0,), [0, 1, 3, 2, 1]), ((1,), [0, 1, 3, 2, 2]), ((4,), None), ((5,), [0, 1, 3, 2, 2, 6])):
        context.tokens.extend(tokens)
        made.propose([context], [4])
        assert context.state.read[: len(own or ())] == (own or [])
        assert cache.length(context.state.slot) == len(context.state.read)
    made.stop(context)
    cache.check()
    assert cache.free() == made.runner.cache.slots * cache.capacity


def test_a_long_text_is_settled_where_words_begin_and_reads_the_same():
    made = drafter()
    words = [2, 1, 9, 3, 0, 1, 6, 99, 8] * 3 * WINDOW
    context = asked(made, *words[:WINDOW])
    for end in range(WINDOW, len(words), 5):
        context.tokens[:] = words[:end]
        text = made._text(context)
        assert text == made._retold([], first=True) + asked_at_once(made, words[:end])
        assert len(words[:end]) - context.state.at <= 2 * WINDOW
    assert context.state.at > 0


def asked_at_once(made, tokens):
    return [*made.own.begin, *made._retold(tokens, first=True)]


def test_a_short_context_ends_the_draft_and_nothing_else():
    spelled = "other-vocab:model=toy:100:a+b+c,depth=2"
    toy = Toy(drafter=spelled, model=ToyModel(3, 0, context_length=200)).resized(max_requests=2)
    rig = toy.build()
    text = rig.write([laws.Ask((0, 1) * 40, Sampling(temperature=0, max_tokens=60))])[0]
    assert text.tokens == toy.plain().build().write([laws.Ask((0, 1) * 40, replace(GREEDY, max_tokens=60))])[0].tokens
    assert rig.engine.stats.draft_failures == 0


def test_chances_are_those_of_the_bytes():
    made = drafter(depth=3)
    context = asked(made, 0)
    growth = made._begin(context, 8)
    growth.ids += [2, 1, 3]  # "ab" "a" " "
    growth.chances = [0.25, 0.5, 0.5]
    made._reread(growth)
    assert growth.tokens == [0, 1, 0, 9]
    assert growth.chances == pytest.approx([0.5, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("other-vocab:", "needs a model, and the target's folder names none; give other-vocab:model=FOLDER"),
        ("other-vocab:model=toy:1,method=sle", "no method 'sle'; did you mean 'slem'"),
        ("other-vocab:model=toy:1:x+y,method=tli", "shares no token with the target; use method=slem, or"),
        ("draft-model:model=toy:1:5", "or drafter='other-vocab:model=toy:1:5'"),
    ],
)
def test_bad_input(spelled, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        Toy(drafter=spelled).build()
