"""transformers: its own generate, in bfloat16.

Does not: compile or quantise.
"""

import logging
from importlib import import_module
from time import perf_counter
from typing import Any

_REPEATS = 5
_AHEAD = 5  # guessed tokens of a step


class Engine:
    """transformers as one of the engines."""

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        self.library: Any = import_module("transformers")
        self.version = self.library.__version__
        logging.getLogger("transformers").setLevel(logging.ERROR)

    def load(self, path: str, variant: str, threads: int) -> dict[str, float]:
        """Open the checkpoint; its end of sequence is forgotten, so that every text has the length asked for."""
        began = perf_counter()
        self.torch.set_num_threads(threads)
        self.torch.set_grad_enabled(False)
        self.model = self._open(path, variant)
        return {"load_seconds": perf_counter() - began}

    def _open(self, path: str, variant: str) -> Any:  # noqa: ANN401 - the library's own
        dtype = {"bf16": self.torch.bfloat16}[variant]
        model = self.library.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).eval()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model

    def draft(self, path: str, variant: str) -> None:
        """A second model, which guesses the same number of tokens in every step."""
        self.second = self._open(path, variant)
        self.second.generation_config.num_assistant_tokens = _AHEAD
        self.second.generation_config.num_assistant_tokens_schedule = "constant"
        self.second.generation_config.assistant_confidence_threshold = 0.0

    def _generate(self, prompts: list[list[int]], tokens: int, **more: Any) -> dict[str, float]:  # noqa: ANN401
        """Generate greedily; seconds and tokens after the first step."""
        ids = self.torch.tensor(prompts)
        clock = _Clock()
        kept = self.library.StoppingCriteriaList([clock])
        lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        mask = self.torch.ones_like(ids)
        self.model.generate(ids, attention_mask=mask, do_sample=False, stopping_criteria=kept, **lengths, **more)
        (began, first), (ended, last) = clock.marks[0], clock.marks[-1]
        return {"seconds": ended - began, "tokens": last - first}

    def decode(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, one at a time."""
        return self.batch([prompt], tokens)

    def prefill(self, prompt: list[int]) -> dict[str, float]:
        """A prompt to its first token."""
        began = perf_counter()
        self._generate([prompt], 1)
        return {"seconds": perf_counter() - began, "tokens": len(prompt)}

    def batch(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        """After every text's first token, one of each at a time."""
        return self._generate(prompts, tokens)

    def speculate(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first step, with the second model."""
        return self._generate([prompt], tokens, assistant_model=self.second)

    def width(self, context: list[int], rows: list[int]) -> dict[str, float]:
        """One pass over `rows` after `context`, with the logits of every row."""
        cache = self.library.DynamicCache(config=self.model.config)
        self.model(self.torch.tensor([context]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids, times = self.torch.tensor([rows]), []
        for _ in range(_REPEATS + 1):
            began = perf_counter()
            self.model(ids, past_key_values=cache, use_cache=True)
            times.append(perf_counter() - began)
            cache.crop(-len(rows))
        return {"seconds": sorted(times[1:])[_REPEATS // 2], "tokens": len(rows)}


class _Clock:
    """A stopping criterion that stops nothing and notes the time and how many tokens there are."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []

    def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ANN401 - tensors
        self.marks.append((perf_counter(), ids.numel()))
        return ids.new_zeros(ids.shape[0]).bool()
