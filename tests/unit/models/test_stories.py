"""A real model: greedy text equals transformers', one row at a time and checked in drafts of eight."""

from pathlib import Path

import pytest
import torch
import transformers

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack
from forerun.models.load import load_model
from forerun.models.tokenizer import Tokenizer
from forerun.types import Work

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "models" / "stories260k-tok512"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the stories260k model in ../shared/data/models")
PROMPT = "Once upon a time, there was a little"


@pytest.fixture(scope="module")
def expected():
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    ids = tokenizer(PROMPT, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=100, min_new_tokens=100, do_sample=False)
    return out[0].tolist(), tokenizer.decode(out[0], skip_special_tokens=True)


def greedy(model, tokens, guesses):
    """100 tokens; `guesses` rows are checked at a time, guessed from the text that is expected."""
    cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, 256)
    slot, _ = cache.open(())
    found, pending, end = list(tokens), tuple(tokens), len(tokens) + 100
    while len(found) < end:
        work = pack([Work(slot, pending, logits=tuple(range(len(pending))))], cache, torch.device("cpu"))
        best = model.forward(work, cache).logits.argmax(-1).tolist()
        cache.advance(work.segments)
        cache.keep(slot, pending, range(len(pending)))
        found += best[-1:] if len(found) == len(tokens) else best
        pending = tuple(found[cache.length(slot) :]) if guesses is None else (found[-1], *guesses[len(found) :][:7])
        if guesses is not None:
            assert found[:end] == guesses[: len(found)]
    return found[:end]


def test_greedy_text(expected):
    ids, text = expected
    tokenizer, model = Tokenizer.from_folder(FOLDER), load_model(FOLDER)
    tokens = tokenizer.encode(PROMPT)
    assert greedy(model, tokens, None) == ids
    assert greedy(model, tokens, ids) == ids
    assert tokenizer.decode(ids) == text
