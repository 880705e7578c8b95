"""R4: a thousand requests of the bundled model in changing company; whoever asks again gets the same tokens."""

from collections import defaultdict

import numpy as np
import pytest

from forerun.config import Config
from forerun.models.contract import Model
from forerun.models.load import folder_of, load_model
from forerun.models.tokenizer import Tokenizer
from forerun.testing import Ask, Toy
from forerun.types import PassOutput, Sampling

SIZES = (1, 2, 3, 8, 64, 64, 64, 64)  # of the companies
STEP = 160  # tokens: where many come at once their prompts are read in parts
STORY = "Once upon a time there was a small dog who liked to play with a cat near the big old house of {}"
OPTIONS = "block_size=4"  # so that short prompts are found again, too


@pytest.fixture(scope="module")
def asks():
    """Twenty of them, greedy and sampled; their prompts begin alike, and some are parts of others."""
    tokenizer, names = Tokenizer.from_folder(folder_of("reference")), ["Ann", "Tom", "the king", "nobody"]
    prompts = [tokenizer.encode(STORY.format(names[i % 4]))[: 3 + 2 * (i // 2)] for i in range(20)]
    return [
        Ask(tuple(prompt), Sampling(temperature=i % 2, top_p=0.95, seed=i, max_tokens=4 + i % 3))
        for i, prompt in enumerate(prompts)
    ]


def told(toy, asks, count):
    """Every text that each ask got, in companies of all sizes and in any order; and how many found a prefix."""
    rig, chance, found, left = toy.build(), np.random.default_rng(1), defaultdict(set), count
    while left:
        size = min(left, int(chance.choice(SIZES)))
        numbers = {rig.add(asks[which]): which for which in chance.integers(0, len(asks), size).tolist()}
        rig.finish()
        for number, which in numbers.items():
            found[which].add(rig.text(number).tokens)
        left -= size
    return found, sum(events[-1].stats.cached > 0 for events in rig.said.values())


def target(drafter="none", model=None):
    model = model or load_model(folder_of("reference"))
    cache, config = f"paged:{OPTIONS}", Config(max_requests=64, max_step_tokens=STEP)
    return Toy(drafter=drafter, verifier="match", cache=cache, model=model, config=config)


@pytest.mark.slow
def test_a_thousand_requests_have_one_text_each(asks):
    alone = [target().plain().build().write([ask])[0].tokens for ask in asks]
    assert len(set(alone)) > 15, "the texts do not differ; the test shows nothing"
    found, hits = told(target("ngram:min_match=1"), asks, 1000)
    assert {which: texts for which, texts in found.items() if texts != {alone[which]}} == {}
    assert len(found) == len(asks)
    assert 500 < hits < 1000


class Sociable(Model):
    """A target whose logits depend a little on who else is in the pass."""

    def __init__(self, inner):
        self.inner, self.info = inner, inner.info

    def forward(self, work, cache):
        output = self.inner.forward(work, cache)
        noise = 0.02 * (len(work.tokens) % 7) * (output.logits * 1000).sin()
        return PassOutput(output.logits + noise, output.hidden)


def test_what_depends_on_company_is_seen(asks):
    found, _ = told(target(model=Sociable(load_model(folder_of("reference")))), asks, 100)
    assert any(len(texts) > 1 for texts in found.values())
