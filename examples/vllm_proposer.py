"""Give vLLM a drafter that needs no model; asked here as vLLM asks it, which needs neither vLLM nor a GPU."""

import json
from types import SimpleNamespace

import numpy as np

from forerun import vllm

speculative = {"method": "custom_class", "model": "forerun.vllm.suffix_decoding", "num_speculative_tokens": 4}
print(f"vllm serve MODEL --speculative-config '{json.dumps(speculative)}'")

config = SimpleNamespace(  # what a proposer reads of vLLM's own config
    speculative_config=SimpleNamespace(num_speculative_tokens=speculative["num_speculative_tokens"]),
    model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 100),
    scheduler_config=SimpleNamespace(max_num_seqs=8),
    additional_config={},
)
proposer = vllm.suffix_decoding(config)
texts = [[5, 6, 7, 8, 9, 5, 6, 7], [1, 2, 3]]  # the first repeats itself
rows = np.zeros((len(texts), 64), dtype=np.int32)
for row, text in zip(rows, texts, strict=True):
    row[: len(text)] = text
drafts = proposer.propose(
    sampled_token_ids=[text[-1:] for text in texts],
    num_tokens_no_spec=np.array([len(text) for text in texts], dtype=np.int32),
    token_ids_cpu=rows,
)
for text, draft in zip(texts, drafts, strict=True):
    print(f"{text} -> {draft}")
