"""A model of transformers writes with forerun's loop, under transformers' own `generate`."""

import torch
import transformers

from forerun.transformers import Generate

config = transformers.LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    pad_token_id=0,
)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config).eval()  # any causal model that is in memory; here a small random one
prompt = torch.tensor([[5, 9, 5, 9, 5]])

generate = Generate(model, drafter="ngram", planner="fixed")
ours = model.generate(prompt, max_new_tokens=40, do_sample=False, custom_generate=generate)
theirs = model.generate(prompt, max_new_tokens=40, do_sample=False)
print(ours[0].tolist())
print("equal to transformers' own loop:", torch.equal(ours, theirs))
