"""`model.generate(custom_generate=...)` writes what `model.generate` does, on the very model it is called on."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers

from forerun.errors import ConfigError
from forerun.transformers import Generate

PROMPTS = torch.tensor([[3, 9, 4, 3, 9], [5, 5, 6, 5, 5], [1, 2, 3, 1, 2]])
GREEDY = {"max_new_tokens": 24, "do_sample": False}


@pytest.fixture(scope="module")
def model():
    """A Llama whose drafts come true now and then: few tokens, weights large enough to have opinions."""
    config = transformers.LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=23,
        pad_token_id=0,
    )
    made = transformers.LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(3)
    for weight in made.parameters():
        weight.data = torch.randn(weight.shape, generator=generator) * (0.3 if weight.dim() > 1 else 1.0)
    return made


@pytest.fixture(scope="module")
def generate(model):
    return Generate(model, drafter="ngram", planner="fixed", profiles="off", threads=1)


def both(model, generate, **options):
    options = {"input_ids": PROMPTS, **GREEDY, **options}
    return model.generate(**options), model.generate(**options, custom_generate=generate)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_return_sequences": 1, "return_dict_in_generate": True},
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[7], [9, 4]]},
        {"eos_token_id": [4, 11]},
        {"eos_token_id": [4, 11], "min_new_tokens": 9},
        {"eos_token_id": [4, 11], "min_length": 16},
        {"max_new_tokens": None, "max_length": 11},
        {"prompt_lookup_num_tokens": 3, "input_ids": PROMPTS[:1]},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_greedy_tokens_are_the_model_s(model, generate, options):
    theirs, ours = both(model, generate, **options)
    if options.get("return_dict_in_generate"):
        theirs, ours = theirs.sequences, ours.sequences
    assert torch.equal(theirs, ours)


def test_threads_may_ask_one_model(model, generate):
    alone = [model.generate(row[None], **GREEDY) for row in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        asks = [threads.submit(model.generate, row[None], **GREEDY, custom_generate=generate) for row in PROMPTS]
        assert all(torch.equal(one.result(60), other) for one, other in zip(asks, alone, strict=True))


def test_drafts_come_true(model, generate):
    """Else this would show plain decoding only."""
    before = generate.engine.stats.steps
    for row in PROMPTS:
        model.generate(row[None], max_new_tokens=60, do_sample=False, eos_token_id=None, custom_generate=generate)
    assert generate.engine.stats.steps - before < 170


def test_prompts_of_different_lengths(model, generate):
    padded = torch.tensor([[0, 0, 3, 9, 4], [5, 5, 6, 5, 5]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    theirs, ours = both(model, generate, input_ids=padded, attention_mask=mask)
    assert torch.equal(theirs, ours)


def test_seeds(model, generate):
    """Forerun's own, or torch's; samples of a prompt differ."""
    drawn = {"do_sample": True, "temperature": 1.2, "top_k": 20, "max_new_tokens": 24, "custom_generate": generate}

    def draw(**options):
        return model.generate(PROMPTS[:1], **drawn, num_return_sequences=3, **options)

    assert torch.equal(draw(forerun_seed=5), draw(forerun_seed=5))
    assert not torch.equal(draw(forerun_seed=5), draw(forerun_seed=6))
    assert len({tuple(row.tolist()) for row in draw(forerun_seed=5)}) == 3
    torch.manual_seed(1)
    first = draw()
    torch.manual_seed(1)
    assert torch.equal(first, draw())


def test_draws_follow_the_model(model, generate):
    """The second token's distribution, over 800 texts, against the model's own."""
    drawn = {"do_sample": True, "top_k": 5, "max_new_tokens": 1, "num_return_sequences": 800, "forerun_seed": 1}
    found = model.generate(PROMPTS[:1], **drawn, custom_generate=generate)[:, -1]
    with torch.no_grad():
        logits = model(PROMPTS[:1]).logits[0, -1].double()
    best = logits.topk(5)
    expected = torch.zeros_like(logits).index_put((best.indices,), best.values.softmax(0))
    assert (found.bincount(minlength=24) / 800 - expected).abs().max() < 0.07


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_beams": 2}, "generation mode 'beam_search'"),
        ({"max_time": 9.0}, "stopping criterion MaxTimeCriteria"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores is asked for"),
        ({"suppress_tokens": [4]}, "logits processor SuppressTokensLogitsProcessor"),
        ({"inputs_embeds": torch.zeros(*PROMPTS.shape, 32)}, "inputs_embeds is given"),
        ({"position_ids": torch.arange(5, 5 + PROMPTS.shape[1])[None]}, "position_ids do not count"),
        ({"position_ids": torch.arange(PROMPTS.shape[1] - 1)[None]}, "position_ids do not count"),
        ({"attention_mask": 1 - torch.eye(PROMPTS.shape[0], PROMPTS.shape[1] + 1)}, "attention_mask is"),
    ],
)
def test_what_nobody_would_heed_is_refused(model, generate, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        model.generate(PROMPTS, **{**GREEDY, **options}, custom_generate=generate)


def test_models_that_cannot_be_meant(model, generate):
    other = transformers.LlamaForCausalLM(model.config)
    with pytest.raises(ConfigError, match="training mode"):
        Generate(other.train())
    with pytest.raises(ConfigError, match="another model"):
        other.eval().generate(PROMPTS, **GREEDY, custom_generate=generate)
    with pytest.raises(ConfigError, match="NoneType is no model of transformers"):
        Generate(None)


def test_a_model_that_went_back_to_training_is_refused(model, generate):
    try:
        model.train()
        with pytest.raises(ConfigError, match="training mode"):
            model.generate(PROMPTS, **GREEDY, custom_generate=generate)
    finally:
        model.eval()


def test_positions_that_count_from_0_change_nothing(model, generate):
    padded, mask = torch.cat([torch.zeros_like(PROMPTS[:1, :2]), PROMPTS[:1]], 1), torch.ones(1, PROMPTS.shape[1] + 2)
    mask[:, :2] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0).long()
    expected = model.generate(PROMPTS[:1], **GREEDY)[:, PROMPTS.shape[1] :]
    found = model.generate(padded, attention_mask=mask, position_ids=places, **GREEDY, custom_generate=generate)
    assert torch.equal(found[:, PROMPTS.shape[1] + 2 :], expected)
