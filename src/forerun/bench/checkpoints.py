"""Llama-shaped checkpoints of random weights, as folders that every engine can read or convert.

Weights are bfloat16, the tokenizer has one token per byte and names for the rest of the vocabulary.
Does not: say anything of text, which random weights do not have.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from forerun.bench.roofline import dimensions
from forerun.models.assemble import specs
from forerun.models.families.llama import adapt
from forerun.models.recipe import Settings

SPECIAL = ("<unk>", "<s>", "</s>")
DRAFT_LAYERS = 2
_MERGE = ("a", "b")  # llama.cpp takes no byte-pair tokenizer without one
_CONTEXT = 2048
_SCALE = 0.02  # standard deviation of a weight


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make` unless it is there already; a failure or a kill leaves no half of it."""
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            make(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def checkpoint(shape: str, work: Path, agreement: float | None = None) -> Path:
    """The checkpoint of a shape in the working folder, with a folder `draft` beside it where an agreement is given.

    In both models then only the first layer's feed-forward part adds anything, and it is the same in both: the next
    token depends on the last one alone. The draft has other embeddings for some tokens, so that it guesses as large a
    share of the target's greedy tokens as was asked for.
    """
    if agreement is None:
        return once(work / shape / "checkpoint", lambda folder: write(shape, folder))
    place = work / f"{shape}-agree-{agreement:g}"
    once(place / "draft", lambda folder: write(shape, folder, silent=True, layers=DRAFT_LAYERS, agreement=agreement))
    return once(place / "checkpoint", lambda folder: write(shape, folder, silent=True))


def write(shape: str, folder: Path, *, silent: bool = False, layers: int | None = None, agreement: float = 1.0) -> None:
    """config.json, model.safetensors and the tokenizer of a shape."""
    config = settings(shape)
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    weights = _weights(config, silent=silent)
    if agreement < 1:
        _disagree(weights["model.embed_tokens.weight"], agreement, tied=config["tie_word_embeddings"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})


def _weights(config: dict[str, Any], *, silent: bool) -> dict[str, torch.Tensor]:
    """Every tensor; the ends are drawn first, so that models of different depth share them."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, size in sorted(specs(adapt(Settings(config, "noise"))).items(), key=lambda item: "layers" in item[0]):
        if len(size) == 1:
            weight = torch.ones(size)
        elif silent and name.endswith("layers.0.mlp.down_proj.weight"):
            weight = torch.randn(size, generator=generator)  # far more than the embedding that it is added to
        elif silent and name.endswith(("o_proj.weight", "down_proj.weight")):
            weight = torch.zeros(size)
        else:
            weight = torch.randn(size, generator=generator).mul_(_SCALE)
        found[name] = weight.bfloat16()
    return found


def _disagree(embedding: torch.Tensor, agreement: float, *, tied: bool) -> None:
    """Draw some rows anew, in place, and keep a share s of them.

    A token is guessed right where its own row is kept. Where the rows are the head's too, the likeliest token's must
    be kept as well (s), and beat (1 - s) N new rows as it beat N old ones (1 in 2 - s): agreement = s² / (2 - s).
    """
    share = ((agreement**2 + 8 * agreement) ** 0.5 - agreement) / 2 if tied else agreement
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand(len(embedding), generator=generator) >= share
    other = torch.randn(embedding.shape, generator=generator).mul_(_SCALE).bfloat16()
    embedding[rows] = other[rows]


def settings(shape: str) -> dict[str, Any]:
    """config.json of a shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **dimensions(shape),
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _tokenizer(size: int) -> Tokenizer:
    """Bytes, then names that no text contains, up to the size of the vocabulary."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "".join(_MERGE)]
    words += [f"unused{number}" for number in range(size - len(words))]
    tokenizer = Tokenizer(
        models.BPE({word: number for number, word in enumerate(words)}, [_MERGE], unk_token=SPECIAL[0])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return tokenizer
