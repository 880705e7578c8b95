"""Generate several texts at once, and say how many tokens each step of the model brought."""

import sys

from forerun import LLM, Sampling

llm = LLM(sys.argv[1] if len(sys.argv) > 1 else "reference")
prompts = ["Once upon a time", "One day, a little dog"]
for prompt, result in zip(prompts, llm.generate(prompts, Sampling(temperature=0, max_tokens=40)), strict=True):
    print(f"{prompt}{result.text}")
    print(f"[{len(result.tokens)} tokens, {result.stats.tokens_per_step:.2f} per step, {result.finish_reason}]\n")
