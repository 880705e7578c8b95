"""OpenVINO: a pass through its runtime, texts through GenAI with one of its two attention backends.

A variant is "<precision> <backend>": SDPA is the stateful model, PA the paged one that batches continuously.
Does not: tune beyond the latency hint and the number of threads.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

_REPEATS = 5
_AHEAD = 5  # guessed tokens of a step
_STEP_TOKENS = 512
_EXPORTER = "optimum.commands.optimum_cli"
_PRECISIONS = {
    "int8": ("int8",),
    "int4": ("int4", "--group-size", "64", "--ratio", "1.0", "--sym"),  # 64 divides every width, 128 does not
}


class Engine:
    """OpenVINO GenAI as one of the engines."""

    def __init__(self) -> None:
        self.runtime: Any = import_module("openvino")
        self.genai: Any = import_module("openvino_genai")
        self.version = self.genai.__version__

    def prepare(self, source: str, target: str, variant: str) -> None:
        """A checkpoint -> OpenVINO's format, by optimum and nncf."""
        for needed in ("optimum.intel", "nncf"):
            import_module(needed)
        task = ("--model", source, "--task", "text-generation-with-past", "--weight-format")
        command = [sys.executable, "-m", _EXPORTER, "export", "openvino", *task, *_PRECISIONS[variant], target]
        done = subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603 - this environment's own exporter
        if done.returncode:
            raise RuntimeError(f"the exporter ended with code {done.returncode}")

    def load(self, path: str, variant: str, threads: int) -> dict[str, float]:
        """Open the pipeline of the variant's backend."""
        began = perf_counter()
        self.path = path
        self.request: Any = None
        self.how = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
        self.stateful = variant.endswith("SDPA")
        if self.stateful:
            self.pipeline = self.genai.LLMPipeline(path, "CPU", ATTENTION_BACKEND="SDPA", **self.how)
        else:
            scheduler = self.genai.SchedulerConfig()
            scheduler.max_num_batched_tokens = _STEP_TOKENS
            self.pipeline = self.genai.ContinuousBatchingPipeline(path, scheduler, "CPU", self.how)
        return {"load_seconds": perf_counter() - began}

    def draft(self, path: str, variant: str) -> None:
        """A second pipeline with a draft model, which only the paged backend has here."""
        if self.stateful:
            raise NotImplementedError("the draft model is measured with the paged backend")
        second = self.genai.draft_model(path, "CPU", **self.how)
        self.drafted = self.genai.LLMPipeline(self.path, "CPU", draft_model=second, **self.how)

    def _settings(self, tokens: int) -> Any:  # noqa: ANN401 - the package's own
        settings = self.genai.GenerationConfig()
        settings.max_new_tokens = settings.min_new_tokens = tokens
        settings.ignore_eos, settings.do_sample, settings.apply_chat_template = True, False, False
        return settings

    def _together(self, pipeline: Any, prompts: list[list[int]], settings: Any) -> tuple[float, int]:  # noqa: ANN401
        """Generate; seconds and tokens after the first token of every text."""
        batch, tokens = self.runtime.Tensor(np.array(prompts)), settings.max_new_tokens
        found = pipeline.generate(batch, settings).perf_metrics
        milliseconds = found.get_generate_duration().mean - found.get_ttft().mean
        return milliseconds / 1e3, len(prompts) * (tokens - 1)

    def _continuously(self, prompts: list[list[int]], tokens: int) -> tuple[float, int]:
        """Generate; seconds and tokens from where every text has a token to where the first text is whole."""
        pipeline, settings = self.pipeline, self._settings(tokens)
        tensors = [self.runtime.Tensor(np.array([prompt])) for prompt in prompts]
        texts = [pipeline.add_request(number, tensor, settings) for number, tensor in enumerate(tensors)]
        written = [0] * len(texts)
        marks: list[tuple[float, int]] = []
        while pipeline.has_non_finished_requests():
            pipeline.step()
            written = [count + _new(text) for count, text in zip(written, texts, strict=True)]
            if (not marks and all(written)) or (len(marks) == 1 and max(written) == tokens):
                marks.append((perf_counter(), sum(written)))
        return marks[-1][0] - marks[0][0], marks[-1][1] - marks[0][1]

    def _generate(self, prompts: list[list[int]], tokens: int) -> tuple[float, int]:
        if self.stateful:
            return self._together(self.pipeline, prompts, self._settings(tokens))
        return self._continuously(prompts, tokens)

    def decode(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, one at a time."""
        return self.batch([prompt], tokens)

    def prefill(self, prompt: list[int]) -> dict[str, float]:
        """A prompt to its first token."""
        began = perf_counter()
        self._generate([prompt], 1)
        return {"seconds": perf_counter() - began, "tokens": len(prompt)}

    def batch(self, prompts: list[list[int]], tokens: int) -> dict[str, float]:
        """After every text's first token."""
        seconds, count = self._generate(prompts, tokens)
        return {"seconds": seconds, "tokens": count}

    def speculate(self, prompt: list[int], tokens: int) -> dict[str, float]:
        """After the first token, with the draft model."""
        settings = self._settings(tokens)
        settings.num_assistant_tokens = _AHEAD
        seconds, count = self._together(self.drafted, [prompt], settings)
        return {"seconds": seconds, "tokens": count}

    def width(self, context: list[int], rows: list[int]) -> dict[str, float]:
        """One pass over `rows` after `context`, with the logits of every row.

        The cache cannot be cut back, so each repetition finds the rows of those before it there too.
        """
        if not self.stateful:
            raise NotImplementedError("the paged backend runs no single passes")
        self.request = self.request or self._open()
        self.request.reset_state()
        self._pass(context, 0)
        times = []
        for number in range(_REPEATS + 1):
            began = perf_counter()
            self._pass(rows, len(context) + number * len(rows))
            times.append(perf_counter() - began)
        return {"seconds": sorted(times[1:])[_REPEATS // 2], "tokens": len(rows)}

    def _open(self) -> Any:  # noqa: ANN401 - the package's own
        """The model once more, in the runtime alone: the pipeline gives no access to a pass."""
        model = self.runtime.Core().compile_model(str(Path(self.path, "openvino_model.xml")), "CPU", self.how)
        self.inputs = {name for entry in model.inputs for name in entry.names}
        return model.create_infer_request()

    def _pass(self, tokens: list[int], past: int) -> None:
        count = len(tokens)
        known = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, past + count), np.int64),
            "position_ids": np.arange(past, past + count)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer({name: value for name, value in known.items() if name in self.inputs}, share_inputs=True)


def _new(text: Any) -> int:  # noqa: ANN401 - the package's own
    """Tokens of one text that were not read yet."""
    count = 0
    while text.can_read():
        count += sum(len(output.generated_ids) for output in text.read().values())
    return count
