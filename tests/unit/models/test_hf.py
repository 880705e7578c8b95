"""Models outside the families run through transformers' code with forerun's cache: same laws, or a refusal."""

import logging
from types import SimpleNamespace

import pytest
import torch
import transformers

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack, unpack
from forerun.errors import ConfigError, ModelError
from forerun.models.load import load_model
from forerun.types import LayerPlan, Work

CPU = torch.device("cpu")
SMALL = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0}
TREE = ((5, 9, 11, 7, 30), (-1, -1, 0, 1, 2))
CASES = {
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 48, "max_position_embeddings": 64},
    "cohere": {"intermediate_size": 64, "num_key_value_heads": 2},
    "starcoder2": {"intermediate_size": 64, "num_key_value_heads": 2, "sliding_window": 5},
    "mixtral": {"intermediate_size": 64, "num_key_value_heads": 2, "num_local_experts": 4},
}


def save(model_type, folder, **changes):
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(model_type, **SMALL | changes)
    )
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = noise * 0.25 if weight.dim() > 1 else 1 + 0.3 * noise
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs = save(request.param, folder, **CASES[request.param])
    return SimpleNamespace(theirs=theirs, ours=load_model(folder))


def reference(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), output_hidden_states=True)


def close(ours, theirs):
    assert theirs.abs().max() > 0.1
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


class Runner:
    def __init__(self, model):
        self.model = model
        self.cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 2, 48)

    def run(self, *works):
        work = pack(works, self.cache, CPU)
        out = self.model.forward(work, self.cache)
        self.cache.advance(work.segments)
        return unpack(works, out)

    def commit(self, slot, tokens):
        out = self.run(Work(slot, tuple(tokens), logits=tuple(range(len(tokens)))))[0]
        self.cache.keep(slot, tokens, range(len(tokens)))
        return out.logits


def test_full_cached_and_hidden(pair):
    tokens = torch.randint(3, 96, (14,), generator=torch.Generator().manual_seed(0)).tolist()
    theirs = reference(pair.theirs, tokens)
    runner = Runner(pair.ours)
    slot, _ = runner.cache.open(())
    rows = [runner.commit(slot, tokens[:9]), *(runner.commit(slot, [token]) for token in tokens[9:])]
    close(torch.cat(rows), theirs.logits[0])
    other, _ = runner.cache.open(())
    out = runner.run(Work(other, tuple(tokens), logits=(13,), hidden=(0, 2, -1)))[0]
    close(out.logits, theirs.logits[0, -1:])
    close(out.hidden[0], theirs.hidden_states[1][0])
    assert torch.equal(out.hidden[2], out.hidden[-1])


def test_tree_path_and_neighbour(pair):
    past, (tokens, parents) = [4, 8, 15, 16, 23, 42], TREE
    runner = Runner(pair.ours)
    (slot, _), (other, _) = runner.cache.open(()), runner.cache.open(())
    runner.commit(slot, past)
    outs = runner.run(Work(other, (6, 7), logits=(1,)), Work(slot, tokens, parents, logits=tuple(range(5))))
    close(outs[0].logits, reference(pair.theirs, [6, 7]).logits[0, -1:])
    for path in ([0, 2, 4], [1, 3]):
        theirs = reference(pair.theirs, past + [tokens[i] for i in path])
        close(outs[1].logits[path], theirs.logits[0, len(past) :])
    runner.cache.keep(slot, [9, 7], [1, 3])
    close(runner.commit(slot, [40]), reference(pair.theirs, [*past, 9, 7, 40]).logits[0, -1:])


def test_it_says_that_it_is_slower_and_refuses_layer_plans(tmp_path, caplog):
    save("opt", tmp_path, **CASES["opt"])
    with caplog.at_level(logging.WARNING, logger="forerun"):
        model = load_model(tmp_path)
    assert [r.getMessage() for r in caplog.records if r.name == "forerun"] == [
        "opt runs through transformers' own code: correct, but slower than forerun's families."
    ]
    runner = Runner(model)
    slot, _ = runner.cache.open(())
    with pytest.raises(ConfigError, match="methods that skip layers"):
        runner.run(Work(slot, (3,), logits=(0,), plan=LayerPlan((0,))))


@pytest.mark.parametrize(
    ("model_type", "changes", "sentence"),
    [
        ("mamba", {"state_size": 4}, "keep no tree"),
        ("rwkv", {"context_length": 32}, "ignores tree masks"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "cannot run trees"),
    ],
)
def test_what_cannot_run_trees_is_refused(tmp_path, model_type, changes, sentence):
    save(model_type, tmp_path, **changes)
    with pytest.raises(ModelError, match=sentence):
        load_model(tmp_path)


def test_its_keys_and_values_can_be_int8(tmp_path):
    theirs = reference(save("opt", tmp_path, **CASES["opt"]), tokens := list(range(3, 30))).logits[0]
    runner = Runner(load_model(tmp_path, kv_dtype="int8"))
    ours = runner.commit(runner.cache.open(())[0], tokens)
    assert runner.cache.rows.keys[0].dtype == torch.int8
    assert 0 < (ours - theirs).norm() < 0.05 * theirs.norm()
