"""Every adapter gives transformers' logits: full, chunked, row by row, as a tree, and after a tree."""

import warnings
from threading import Barrier, Thread
from types import SimpleNamespace

import pytest
import torch
import transformers

from forerun.caches.contiguous import ContiguousCache
from forerun.engine.grid import Shaping
from forerun.engine.runner import ModelRunner
from forerun.errors import ConfigError
from forerun.models import parallel
from forerun.models.families import FAMILIES
from forerun.models.load import load_model
from forerun.types import Work

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # it is, on a GPU
VOCAB, LENGTH = 96, 24
TREE = ((5, 9, 11, 7, 30, 31, 2), (-1, -1, 0, 0, 1, 3, 4))  # tokens, parents: two branches that fork again
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDER = {"num_key_value_heads": 4, "hidden_size": 64}  # a quarter of a head is an even number here
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 1e4,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.67,
}
# name -> (model_type, what differs from SMALL); at least one row per row of the table
CASES = {
    "llama": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0}}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}),
    "gemma3_text": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24, "num_hidden_layers": 4},
    ),
    "phi3": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64, "sliding_window": 9}),
    "olmo2": ("olmo2", {}),
    "gpt2": ("gpt2", {"n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 128}),
    "gpt_neox": (
        "gpt_neox",
        WIDER | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "gpt_neox-serial": ("gpt_neox", WIDER | {"use_parallel_residual": False}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "stablelm": ("stablelm", WIDER | {"use_qkv_bias": True, "qk_layernorm": True, "num_key_value_heads": 2}),
    "stablelm-parallel": ("stablelm", WIDER | {"use_parallel_residual": True}),
    "granite": (
        "granite",
        {"embedding_multiplier": 3.0, "logits_scaling": 2.5, "residual_multiplier": 0.3, "attention_multiplier": 0.2},
    ),
}


def randomize(model):
    """Weights large enough that every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(7)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        norm_gain = weight.dim() == 1 and name.endswith("weight")
        weight.data = weight.data + 0.3 * noise if norm_gain else noise * (0.5 if weight.dim() == 1 else 0.25)


def small_config(model_type, changes):
    base = {
        k: v
        for k, v in SMALL.items()
        if not (model_type == "gpt2" and k.startswith(("hidden", "num_", "inter", "max_")))
    }
    return transformers.AutoConfig.for_model(model_type, **base | changes)


KINDS = {  # how a pass runs; None: compiled where that is there
    "": None,
    "ragged": None,
    "padded": Shaping(96),
    "flex": Shaping(96, kernel="flex"),
    "invariant": Shaping(96, invariant=True),
    "shared": None,  # by two processes, which are threads here
}


@pytest.fixture(scope="module", params=CASES)
def written(request, tmp_path_factory):
    """Transformers' model, and the folder it was written to."""
    config = small_config(*CASES[request.param])
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomize(theirs)
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return theirs, folder


@pytest.fixture(scope="module", params=KINDS)
def pair(request, written):
    """(transformers' model, ours) with the same random weights, and how our passes are padded."""
    theirs, folder = written
    if request.param == "shared":
        ours = request.getfixturevalue("shared")(folder)
    else:
        ours = load_model(folder, compiled=not request.param)
    return SimpleNamespace(theirs=theirs, ours=ours, shaping=KINDS[request.param])


class End:
    """One end of a wire between two threads: what torch.distributed is between processes."""

    def __init__(self, rank, barrier, parts):
        self.rank, self.barrier, self.parts = rank, barrier, parts

    def all_reduce(self, tensor):
        found = self._exchange(tensor)
        tensor.copy_(found[0] + found[1])

    def broadcast(self, tensor):
        found = self._exchange(tensor)
        if self.rank:
            tensor.copy_(found[0])

    def _exchange(self, tensor):
        self.parts[self.rank] = tensor.clone()
        self.barrier.wait(60)
        found = list(self.parts)
        self.barrier.wait(60)
        return found


@pytest.fixture(scope="module")
def shared():
    """Folder -> its model, of which another thread holds a half."""
    wire = SimpleNamespace(
        all_reduce=lambda tensor, group: group.all_reduce(tensor),
        broadcast=lambda tensor, _, group: group.broadcast(tensor),
        destroy_process_group=lambda: None,
    )
    leading = []

    def make(folder):
        barrier, parts = Barrier(2), [None, None]
        splits = [parallel.Split(rank, 2, 2, *[End(rank, barrier, parts)] * 2) for rank in range(2)]
        try:
            own, other = (load_model(folder, compiled=False, split=split) for split in splits)
        except ConfigError as problem:
            if "norms over all its heads" not in str(problem):  # the one reason why a family cannot be shared
                raise
            pytest.skip(str(problem))
        following = Thread(target=parallel.follow, args=(other, splits[1]), daemon=True)
        following.start()
        leading.append((own, following))
        return own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "dist", wire)
        patch.setattr(parallel, "atexit", SimpleNamespace(register=lambda _: None))
        yield make
        for own, following in leading:
            own._end()
            following.join()


def reference(model, tokens):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(torch.tensor([tokens]), output_hidden_states=True)


def prompt(length=LENGTH, seed=0):
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Runner:
    """Passes over a cache of our own, all rows' logits."""

    def __init__(self, pair, slots=3):
        self.cache = ContiguousCache(ContiguousCache.Options(), pair.ours.info.layout, slots, 96)
        self.run = ModelRunner(pair.ours, self.cache, pair.shaping).run

    def open(self):
        return self.cache.open(())[0]

    def rows(self, slot, tokens, **options):
        tokens = tuple(tokens)
        return self.run([Work(slot, tokens, logits=tuple(range(len(tokens))), **options)])[0]

    def commit(self, slot, tokens):
        out = self.rows(slot, tokens)
        self.cache.keep(slot, tokens, range(len(tokens)))
        return out.logits


def close(ours, theirs, tolerance=1e-4):
    assert theirs.abs().max() > 1  # the test would pass on any model otherwise
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def path_to(node, tokens, parents):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def test_full_pass_and_hidden_states(pair):
    tokens = prompt()
    theirs = reference(pair.theirs, tokens)
    runner = Runner(pair)
    last = pair.ours.info.num_layers - 1
    out = runner.rows(runner.open(), tokens, hidden=(0, last - 1, last, -1))
    close(out.logits, theirs.logits[0])
    for layer in (0, last - 1):  # transformers norms its last one, so that one is compared through the head above
        close(out.hidden[layer], theirs.hidden_states[layer + 1][0])
    assert torch.equal(out.hidden[-1], out.hidden[last])


def test_chunks_then_single_rows(pair):
    tokens = prompt()
    runner = Runner(pair)
    slot = runner.open()
    rows = [runner.commit(slot, tokens[:10]), runner.commit(slot, tokens[10:18])]
    rows += [runner.commit(slot, [token]) for token in tokens[18:]]
    close(torch.cat(rows), reference(pair.theirs, tokens).logits[0])


def test_tree_then_an_accepted_path(pair):
    past, (tokens, parents) = prompt(12), TREE
    runner = Runner(pair)
    slot = runner.open()
    runner.commit(slot, past)
    out = runner.rows(slot, tokens, parents=parents)
    for leaf in set(range(len(tokens))) - set(parents):
        path = path_to(leaf, tokens, parents)
        theirs = reference(pair.theirs, past + [tokens[i] for i in path]).logits[0, len(past) :]
        close(out.logits[path], theirs)
    path = path_to(5, tokens, parents)
    accepted = [tokens[i] for i in path]
    runner.cache.keep(slot, accepted, path)
    close(runner.rows(slot, [40]).logits, reference(pair.theirs, [*past, *accepted, 40]).logits[0, -1:])


def test_a_tree_that_grows_level_by_level(pair):
    past, (tokens, parents) = prompt(9), TREE
    runner = Runner(pair)
    slot = runner.open()
    runner.commit(slot, past)
    rows = [
        runner.rows(slot, tokens[:2], parents=parents[:2]).logits,
        runner.rows(slot, tokens[2:5], parents=parents[:5], base=2).logits,
        runner.rows(slot, tokens[5:], parents=parents, base=5).logits,
    ]
    for leaf in (5, 6):
        path = path_to(leaf, tokens, parents)
        theirs = reference(pair.theirs, past + [tokens[i] for i in path]).logits[0, len(past) :]
        close(torch.cat(rows)[path], theirs)


def test_requests_in_one_pass(pair):
    first, second, (tokens, parents) = prompt(13, seed=1), prompt(6, seed=2), TREE
    runner = Runner(pair)
    a, b, c = runner.open(), runner.open(), runner.open()
    runner.commit(a, first)
    runner.commit(b, second)
    third = prompt(5, seed=3)
    works = [
        Work(a, tokens, parents, logits=(5, 6)),
        Work(b, (17,), logits=(0,), hidden=(-1,)),
        Work(c, tuple(third), logits=(4,)),
    ]
    outs = runner.run(works)
    for row, leaf in enumerate((5, 6)):
        path = [tokens[i] for i in path_to(leaf, tokens, parents)]
        close(outs[0].logits[row], reference(pair.theirs, first + path).logits[0, -1])
    close(outs[1].logits[0], reference(pair.theirs, [*second, 17]).logits[0, -1])
    close(outs[2].logits[0], reference(pair.theirs, third).logits[0, -1])
    assert outs[1].hidden[-1].shape == (1, pair.ours.info.hidden_size)


def test_every_family_has_a_case():
    assert {model_type for model_type, _ in CASES.values()} | {"gemma3"} == set(FAMILIES.table)
