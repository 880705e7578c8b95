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
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from forerun.bench.roofline import dimensions
from forerun.errors import ForerunError
from forerun.models.assemble import specs
from forerun.models.families.llama import adapt
from forerun.models.recipe import Settings

SPECIAL = ("<unk>", "<s>", "</s>")
_MERGE = ("a", "b")  # llama.cpp takes no byte-pair tokenizer without one
_CONTEXT = 2048
_SCALE = 0.02  # standard deviation of a weight


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make` unless it is there already; a failure or a kill leaves no half of it."""
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(folder)
        except (OSError, SafetensorError) as problem:
            raise ForerunError(f"cannot write {str(folder)!r} ({problem}); make room, or name another.") from problem
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def checkpoint(shape: str, work: Path) -> Path:
    """The checkpoint of a shape in the working folder."""
    return once(work / shape / "checkpoint", lambda folder: write(shape, folder))


def write(shape: str, folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer of a shape."""
    config = settings(shape)
    save_file(_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    (folder / "tokenizer.json").write_text(_tokenizer(config["vocab_size"]).to_str(), encoding="utf-8")
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})


def _weights(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator).mul_(_SCALE)).bfloat16()
        for name, size in specs(adapt(Settings(config, "noise"))).items()
    }


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
