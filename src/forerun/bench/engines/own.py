"""forerun itself, through its whole engine; plain decoding.

Does not: convert anything; it reads the checkpoint.
"""

from time import perf_counter
from typing import Any

import torch

import forerun
from forerun.caches.contiguous import ContiguousCache
from forerun.engine.batch import pack
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.types import Sampling, Work

_REPEATS = 5
_ROOM = 1024  # tokens of one sequence


class Engine:
    """forerun as one of the engines."""

    version = forerun.__version__

    def load(self, path: str, variant: str, threads: int) -> dict[str, Any]:
        """Open the model; `variant` is LLM's dtype."""
        began = perf_counter()
        self.how: dict[str, Any] = {"threads": threads, "context_length": _ROOM}
        try:
            self.llm = LLM(path, dtype=variant, drafter="none", decoder="autoregressive", **self.how)
        except ConfigError as problem:
            raise NotImplementedError(str(problem)) from problem
        return {"load_seconds": perf_counter() - began}

    def draft(self, path: str, variant: str) -> None:
        """A second engine over the same model, with a draft model of the same dtype."""
        drafter = f"draft-model:model=({path}),dtype={variant}"
        self.drafted = LLM(self.llm.model, self.llm.tokenizer, drafter=drafter, **self.how)

    def decode(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, one at a time."""
        return self.batch([prompt], tokens)

    def prefill(self, prompt: list[int]) -> dict[str, float]:
        """A prompt to its first token."""
        began = perf_counter()
        self._run(self.llm, [prompt], 1)
        return {"seconds": perf_counter() - began, "tokens": len(prompt)}

    def batch(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        """From where every text has a token to where the first text is whole."""
        marks = self._run(self.llm, prompts, tokens)
        return {"seconds": marks[1][0] - marks[0][0], "tokens": marks[1][1] - marks[0][1]}

    def speculate(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, with the draft model."""
        marks = self._run(self.drafted, [prompt], tokens)
        return {"seconds": marks[1][0] - marks[0][0], "tokens": marks[1][1] - marks[0][1]}

    def _run(self, llm: LLM, prompts: list[list[int]], tokens: int) -> list[tuple[float, int]]:
        """(time, tokens written) when all texts had begun, and when the first one was whole."""
        engine, sampling = llm.engine, Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True, seed=0)
        written = dict.fromkeys((engine.add(prompt, sampling) for prompt in prompts), 0)
        marks: list[tuple[float, int]] = []
        while engine.busy:
            for event in engine.step():
                written[event.request] += len(event.emissions)
                if event.error is not None:
                    raise RuntimeError(event.error)
            if len(marks) == 0 and all(written.values()):
                marks.append((perf_counter(), sum(written.values())))
            if len(marks) == 1 and max(written.values()) == tokens:
                marks.append((perf_counter(), sum(written.values())))
        return marks

    def width(self, context: list[int], rows: list[int]) -> dict[str, float]:
        """One pass over `rows` after `context`, with the logits of every row."""
        model, count = self.llm.model, len(rows)
        cache = ContiguousCache(ContiguousCache.Options(), model.info.layout, 1, len(context) + count)
        slot, _ = cache.open(())
        first = pack([Work(slot, tuple(context), logits=())], cache, torch.device("cpu"))
        model.forward(first, cache)
        cache.advance(first.segments)
        cache.keep(slot, context, range(len(context)))
        work = pack([Work(slot, tuple(rows), logits=tuple(range(count)))], cache, torch.device("cpu"))
        times = []
        for _ in range(_REPEATS + 1):
            began = perf_counter()
            model.forward(work, cache)
            times.append(perf_counter() - began)
        return {"seconds": sorted(times[1:])[_REPEATS // 2], "tokens": count}
