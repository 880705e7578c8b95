"""onnxruntime-genai, with models of its own builder.

Does not: tune beyond the number of threads.
"""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

_REPEATS = 5
_BUILDER = "onnxruntime_genai.models.builder"
_INT8_ACTIVATIONS = ("--extra_options", "int4_accuracy_level=4", "int4_block_size=32")


class Engine:
    """onnxruntime-genai as one of the engines."""

    def __init__(self) -> None:
        self.api: Any = import_module("onnxruntime_genai")
        self.version = self.api.__version__

    def prepare(self, source: str, target: str, variant: str) -> None:
        """A checkpoint -> ONNX, by the package's own builder."""
        for needed in ("onnx_ir", "torch", "transformers"):
            import_module(needed)
        cache = Path(target, "cache")
        command = [sys.executable, "-m", _BUILDER, "-i", source, "-o", target, "-p", variant, "-e", "cpu"]
        command += ["-c", str(cache), *_INT8_ACTIVATIONS]
        done = subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603 - this environment's own builder
        if done.returncode:
            raise RuntimeError(f"the builder ended with code {done.returncode}")

    def load(self, path: str, variant: str, threads: int) -> dict[str, float]:
        """Open the model."""
        began = perf_counter()
        config = self.api.Config(path)
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self.model = self.api.Model(config)
        return {"load_seconds": perf_counter() - began}

    def _read(self, prompts: list[list[int]], room: int) -> Any:  # noqa: ANN401 - the package's own
        """A generator that has read the prompts and will not stop early."""
        settings, length = self.api.GeneratorParams(self.model), len(prompts[0]) + room
        settings.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(prompts))
        generator = self.api.Generator(self.model, settings)
        generator.append_tokens(np.array(prompts, np.int32))
        return generator

    def decode(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, one at a time."""
        return self.batch([prompt], tokens)

    def prefill(self, prompt: list[int]) -> dict[str, float]:
        """A prompt to its first token."""
        began = perf_counter()
        self._read([prompt], 1).generate_next_token()
        return {"seconds": perf_counter() - began, "tokens": len(prompt)}

    def batch(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        """After every text's first token, one of each at a time."""
        generator = self._read(prompts, tokens)
        generator.generate_next_token()  # a call runs the pass that is due, then picks its token
        began = perf_counter()
        for _ in range(tokens - 1):
            generator.generate_next_token()
        return {"seconds": perf_counter() - began, "tokens": len(prompts) * (tokens - 1)}

    def width(self, context: list[int], rows: list[int]) -> dict[str, float]:
        """One pass over `rows` after `context`, with the logits of every row."""
        generator, times = self._read([context], len(rows)), []
        for _ in range(_REPEATS + 1):
            began = perf_counter()
            generator.append_tokens(np.array([rows], np.int32))
            generator.get_output("logits")
            times.append(perf_counter() - began)
            generator.rewind_to(len(context))
        return {"seconds": sorted(times[1:])[_REPEATS // 2], "tokens": len(rows)}
