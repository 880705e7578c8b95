"""The model in training: transformers' Llama, with an attention that is quick on a CPU.

Does not: cache keys and values; attend across a padding mask (packed sequences have no padding).
"""

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from forerun.train.recipe import Shape

MATMUL_ATTENTION = "forerun_matmul"


def matmul_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Causal attention as two products; on a CPU its backward takes half the time of the fused kernel's."""
    del module, attention_mask
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query * scaling) @ key.transpose(-1, -2)
    future = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype, device=scores.device).triu(1)
    weights = torch.softmax(scores + future, dim=-1).to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register(MATMUL_ATTENTION, matmul_attention)


def make(shape: Shape, vocab_size: int, device: torch.device) -> LlamaForCausalLM:
    """A freshly initialised model in float32."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
        attn_implementation=attention(device),
    )
    return LlamaForCausalLM(config).to(device)


def attention(device: torch.device) -> str:
    return MATMUL_ATTENTION if device.type == "cpu" else "sdpa"


def logits(model: torch.nn.Module, inputs: torch.Tensor, *, bf16: bool) -> torch.Tensor:
    """One forward pass, [batch, length, vocab]."""
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=bf16):
        result: torch.Tensor = model(input_ids=inputs, use_cache=False).logits
    return result
