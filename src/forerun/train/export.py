"""Write a trained model as a Hugging Face folder, swapped in whole.

Does not: write optimiser state; keep the folder it replaces.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from forerun.errors import TrainError
from forerun.train import tokenizer as tokenizers
from forerun.train.checkpoint import write


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path, companion: str = "") -> None:
    """bfloat16 weights (the tied head once), config, tokenizer and, for a target, the drafter beside it."""
    staging = folder.with_name(folder.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        fill(staging, model, tokenizer)
        if companion:
            write_json(staging / "forerun.json", {"drafter": companion})
        swap(staging, folder)
    except OSError as error:
        message = f"cannot export to {str(folder)!r} ({error.strerror}); free space or name another folder with --out."
        raise TrainError(message) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def fill(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    context = model.config.max_position_embeddings
    tokenizers.write(tokenizer, folder, context)
    # named_parameters lists a tied tensor once, under the name that comes first: the input embedding.
    tensors = {n: p.detach().to("cpu", torch.bfloat16).contiguous() for n, p in model.named_parameters()}
    write(folder / "model.safetensors", save(tensors, {"format": "pt"}))
    ends = [tokenizers.special_id(tokenizer, name) for name in (tokenizers.END_OF_TEXT, tokenizers.END_OF_TURN)]
    config = json.loads(model.config.to_json_string(use_diff=False))
    keep = {k: config[k] for k in CONFIG_KEYS if k in config}
    # transformers 4 reads rope_theta, transformers 5 rope_parameters.
    keep |= {"rope_theta": config["rope_parameters"]["rope_theta"], "eos_token_id": ends, "dtype": "bfloat16"}
    write_json(folder / "config.json", {"architectures": ["LlamaForCausalLM"], **keep})
    generation: dict[str, object] = {"bos_token_id": ends[0], "eos_token_id": ends, "pad_token_id": ends[0]}
    write_json(folder / "generation_config.json", generation)


CONFIG_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "attention_dropout",
    "mlp_bias",
    "bos_token_id",
    "rope_parameters",
)


def write_json(path: Path, value: dict[str, object]) -> None:
    write(path, (json.dumps(value, indent=2) + "\n").encode())


def swap(staging: Path, folder: Path) -> None:
    """Put the new folder where the old one was; at no moment is a half-written one under its name."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
