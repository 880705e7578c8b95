"""L3: on the bundled pair, greedy text is plain decoding's and transformers', for every drafter and cache.

60 prompts of 128 tokens. transformers in float32 judges each text by one pass over it: a token is its greedy choice
where it is the argmax of the row before it. Three texts are also written by its own `generate`. Where the best two
logits are nearer than 1e-4, the order of float32 sums decides: such a near-tie is told apart from a divergence, is
counted, and the text is compared up to it.
"""

from itertools import product
from pathlib import Path

import pytest
import torch

import forerun
from forerun.config import Config
from forerun.kernels import native
from forerun.models.load import load_model
from forerun.models.tokenizer import Tokenizer
from forerun.testing import Ask, Toy
from forerun.types import Sampling

FOLDER = Path(forerun.__file__).parent / "reference"
TARGET, DRAFTER = FOLDER / "target", FOLDER / "drafter"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (TARGET / "model.safetensors").is_file() or not (DRAFTER / "model.safetensors").is_file(),
        reason="the bundled models are not in this checkout; train them with `forerun train lm`",
    ),
]
TIE, LENGTH = 1e-4, 128
STARTS = (
    "Once upon a time, there was a little girl named {}. She loved to",
    "{} and Tom went to the park. They saw a big",
    "def {}(items):\n    total = 0\n    for item in items:",
    "User: What is {}?\nAssistant:",
)
NAMES = ["Lily", "Max", "Ben", "Sue", "Anna", "Tim", "Mia", "Jack", "Zoe", "Sam", "Amy", "Dan", "Eva", "Leo", "Kim"]
SPELLED = {
    "none": "none",
    "ngram": "ngram",
    "draft-model": f"draft-model:model={DRAFTER}",
    "tree": f"draft-model:model={DRAFTER},depth=3,tree=(level:width=3)",
}
CACHES = ["contiguous", "paged"]
PLAIN = ("none", "contiguous")
PAIRS = [pair for pair in product(SPELLED, CACHES) if pair not in (PLAIN, ("tree", "contiguous"))]


@pytest.fixture(scope="module")
def prompts():
    tokenizer = Tokenizer.from_folder(TARGET)
    return [tuple(tokenizer.encode(start.format(name))) for name in NAMES for start in STARTS]


@pytest.fixture(scope="module")
def peer():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def target():
    return load_model(str(TARGET), "float32")


def written(target, prompts, drafter, cache):
    device = target.info.layout.device.type
    config = Config(dtype="float32", device=device, max_requests=60, max_step_tokens=4096)
    rig = Toy(drafter=drafter, cache=cache, model=target, config=config).build()
    sampling = Sampling(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    texts = rig.write([Ask(prompt, sampling) for prompt in prompts])
    accepted = {e.source for text in texts for e in text.emissions} - {"target"}
    assert bool(accepted) == (drafter != "none"), "no draft was ever accepted; the test shows nothing"
    assert rig.engine.stats.draft_failures == 0
    return [text.tokens for text in texts]


@pytest.fixture(scope="module")
def plain(target, prompts):
    return written(target, prompts, *PLAIN)


def rows(peer, prompt, text):
    """The peer's logits before every token of the text [tokens, vocab]."""
    with torch.inference_mode():
        return peer(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]


def near_tie(peer, prompt, text, at):
    best = rows(peer, prompt, text[: at + 1])[at].topk(2).values
    return float(best[0] - best[1]) < TIE


def first_difference(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def test_plain_decoding_is_that_of_transformers(plain, prompts, peer):
    ties = 0
    for prompt, text in zip(prompts, plain, strict=True):
        assert len(text) == LENGTH
        logits = rows(peer, prompt, text)
        wrong = torch.nonzero(logits.argmax(-1) != torch.tensor(text)).flatten().tolist()
        if wrong:
            best = logits[wrong[0]].topk(2).values
            assert float(best[0] - best[1]) < TIE, f"after {prompt} token {wrong[0]} is not the greedy one"
            ties += 1
    assert ties <= 0.001 * LENGTH * len(prompts)


def test_plain_decoding_is_what_transformers_generates(plain, prompts, peer):
    for prompt, text in list(zip(prompts, plain, strict=True))[::20]:
        made = peer.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        at = first_difference(text, made)
        assert at is None or near_tie(peer, prompt, text, at)


@pytest.mark.parametrize(("drafter", "cache"), PAIRS)
def test_drafts_change_no_token(drafter, cache, target, plain, prompts, peer):
    ties = 0
    for prompt, text, want in zip(prompts, written(target, prompts, SPELLED[drafter], cache), plain, strict=True):
        at = first_difference(text, want)
        if at is not None:
            assert near_tie(peer, prompt, want, at), f"{drafter} on {cache} leaves plain decoding at token {at}"
            ties += 1
    print(f"{drafter} on {cache}: {ties} near-ties in {LENGTH * len(prompts)} tokens")  # noqa: T201 - with -s
    if native.load() is None:
        assert ties <= 0.001 * LENGTH * len(prompts)
    else:
        assert ties == 0  # compiled passes give a row the same bits at every width, so there is nothing to excuse


@pytest.mark.gpu
@pytest.mark.parametrize(("drafter", "cache"), PAIRS)
def test_drafts_change_no_token_on_a_gpu(drafter, cache, prompts, peer):
    target, few = load_model(str(TARGET), "float32", "cuda"), prompts[:8]
    wanted = written(target, few, *PLAIN)
    for prompt, text, want in zip(few, written(target, few, SPELLED[drafter], cache), wanted, strict=True):
        at = first_difference(text, want)
        assert at is None or near_tie(peer, prompt, want, at)
