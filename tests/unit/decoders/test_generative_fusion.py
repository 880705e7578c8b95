"""Two tokenizers, one text: the law is that of the bytes, every outcome visited against a sum over strings."""

import numpy as np
import pytest
import torch

from forerun.decoders.generative_fusion import Ladder
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.models.toy import ToyModel
from forerun.sampling import Shaper
from forerun.testing import Ask, BushyDrafter, Toy, distance, laws
from forerun.testing.checks import TREE
from forerun.types import Sampling

OWN, LETTERS, UNKNOWN = ("a", "b", "ab"), ("a", "b", "c"), ("a", "x", "b")
TARGETS = {words: ToyModel(seed=1, words=words) for words in (OWN, LETTERS, UNKNOWN)}
CUTS = {  # how the other tokenizers write the target's tokens; None: they cannot
    "a+b": {"a": "a", "b": "b", "ab": "a b", "x": None},
    "a+b+c+ab+ca": {"a": "a", "b": "b", "c": "c", "ab": "ab", "x": None},
    "b+a+aba": {"a": "a", "b": "b", "ab": "a b", "x": None},
}
PAIRS = [
    (OWN, "a+b"),
    (OWN, "b+a+aba"),
    (OWN, "a+b+c+ab+ca"),
    (LETTERS, "a+b+c+ab+ca"),
    (("a", "x", "b"), "a+b"),
]
CHAIN = "draft-model:model=toy:100:{},depth=2"


def decoder(other, share=0.4, top=2):
    return f"generative-fusion:other=toy:100:{other},share={share},top={top}"


class Fused:
    """The law, from strings and tables alone."""

    def __init__(self, words, other, share=0.4, top=2):
        self.words, self.target, self.share, self.top = words, TARGETS[words], share, top
        self.pieces = other.split("+")
        self.model, self.cuts = ToyModel(seed=100, words=tuple(self.pieces)), CUTS[other]

    def ids(self, tokens):
        cuts = [self.cuts[self.words[token]] for token in tokens]
        return [i for cut in cuts for i in ([self.pieces.index(part) for part in cut.split()] if cut else [0])]

    def chance(self, tokens, word):
        """That what the other model writes next begins with the word, by its own cut or one that covers it."""
        text, total, chance = self.ids(tokens), 0.0, 1.0
        rest = word
        for part in self.cuts[word].split():
            p = self.model.probs(text)
            total += chance * sum(
                p[i] for i, piece in enumerate(self.pieces) if piece.startswith(rest) and piece != rest
            )
            chance *= p[self.pieces.index(part)]
            text, rest = [*text, self.pieces.index(part)], rest[len(part) :]
        return total + chance

    def weights(self, tokens):
        p = self.target.probs(tokens)
        best = np.argsort(-p)[: self.top]
        law = np.zeros_like(p)
        for x in best:
            word = self.words[x]
            other = p[x] if self.cuts[word] is None else self.chance(tokens, word)
            law[x] = p[x] ** (1 - self.share) * other**self.share
        return law

    def law(self, prompt, sampling, length):
        texts = {(): 1.0}
        for _ in range(length):
            grown = {}
            for output, weight in texts.items():
                with np.errstate(divide="ignore"):
                    logits = torch.from_numpy(np.log(self.weights((*prompt, *output))))[None]
                shaper = Shaper(sampling, (*prompt, *output), len(prompt))
                for token, chance in enumerate(shaper.probabilities(logits.clamp_min(-1e4), lambda _: ())[0].tolist()):
                    if chance > 0:
                        grown[*output, token] = weight * chance
            texts = grown
        return texts


@pytest.mark.parametrize("drafter", ["none", CHAIN, TREE, BushyDrafter], ids=["none", "chain", "tree", "bushy"])
@pytest.mark.parametrize(("words", "other"), PAIRS)
def test_the_law_is_the_one_that_is_named(words, other, drafter):
    spelled = "+".join(words)
    if isinstance(drafter, str):
        drafter = drafter.format(spelled) if "{}" in drafter else drafter.replace("toy:100", f"toy:100:{spelled}")
    for verifier in ("rejection", "match"):
        toy = Toy(drafter=drafter, verifier=verifier, decoder=decoder(other), model=TARGETS[words])
        for sampling in laws.SAMPLINGS.values():
            wanted = Fused(words, other).law(laws.PROMPT, sampling, 3)
            assert distance(wanted, laws.output_law(toy, sampling)) < laws.TIGHT


def test_other_laws_are_seen():
    """The proof can fail: another share, other candidates, and no tokens that cover a word are other laws."""
    wanted = Fused(LETTERS, "a+b+c+ab+ca")
    law = wanted.law(laws.PROMPT, laws.SAMPLINGS["plain"], 3)
    for other in (Fused(wanted.words, "a+b+c+ab+ca", share=0.3), Fused(wanted.words, "a+b+c+ab+ca", top=3)):
        assert distance(law, other.law(laws.PROMPT, laws.SAMPLINGS["plain"], 3)) > 1e-3
    wanted.pieces[3:] = ["-", "--"]
    assert distance(law, wanted.law(laws.PROMPT, laws.SAMPLINGS["plain"], 3)) > 1e-3


def test_without_a_share_the_law_is_the_targets():
    toy = Toy(drafter=BushyDrafter, decoder=decoder("a+b+c+ab+ca", share=0, top=9), model=TARGETS[LETTERS])
    for sampling in laws.SAMPLINGS.values():
        laws.exact_is_true(toy, sampling)


def test_where_the_other_models_context_is_full_the_target_writes_alone(monkeypatch):
    toy = Toy(drafter="none", decoder=decoder("a+b+c+ab+ca", top=1), model=TARGETS[LETTERS])
    rig = toy.build()
    monkeypatch.setattr(rig.runners[0].cache, "reserve", lambda *_: False)
    ask = Ask((0, 1), Sampling(max_tokens=12, seed=4))
    assert rig.write([ask])[0].tokens == toy.plain().build().write([ask])[0].tokens
    laws.is_sound(rig)


def test_every_word_is_what_the_other_tokenizer_makes_of_it():
    llm = LLM(drafter="none", threads=1)
    spelling = llm.engine.members.decoder.parts.setup.open_spelling("")
    ladder = Ladder(spelling, spelling)
    texts = [i for i, piece in enumerate(spelling.pieces) if isinstance(piece, bytes)]
    for token in texts[::97]:
        word, piece = ladder.word(token), spelling.pieces[token]
        if word.known:
            assert b"".join(spelling.pieces[i] for i in word.ids) == piece
            low, high = word.spans[0]
            covering = {i for i in texts if spelling.pieces[i].startswith(piece) and spelling.pieces[i] != piece}
            assert set(ladder.order[low:high].tolist()) == covering
    special = next(i for i, piece in enumerate(spelling.pieces) if isinstance(piece, str))
    assert ladder.word(special).ids == (special,)


@pytest.mark.parametrize(
    ("spelled", "sentence"),
    [
        ("generative-fusion:", "names none; give model=FOLDER"),
        ("generative-fusion:share=1.5", "a share from 0 to 1"),
        ("generative-fusion:share=nan", "a share from 0 to 1"),
        ("generative-fusion:top=0", "1 or more tokens"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(spelled, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Toy(decoder=spelled).build()


def test_on_the_bundled_pair_drafts_change_nothing():
    kept = {"decoder": "generative-fusion", "verifier": "match", "threads": 1, "max_requests": 2, "context_length": 128}
    plain = LLM(drafter="none", **kept)
    drafted = LLM(plain.model, plain.tokenizer, drafter="draft-model:depth=3", planner="fixed:nodes=3", **kept)
    for sampling in (Sampling(temperature=0, max_tokens=40), Sampling(seed=3, max_tokens=40)):
        alone, fast = (llm.generate(["Once upon a time there was a"], sampling)[0] for llm in (plain, drafted))
        assert fast.tokens == alone.tokens
        assert fast.stats.steps < alone.stats.steps
