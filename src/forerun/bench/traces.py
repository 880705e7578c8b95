"""Requests as they came to real services, made smaller, or made up: when, how long, and what they share.

Traces say lengths and times, not texts. Tokens are drawn; those of a shared block are the same wherever it comes.
Does not: know users, so whose a request is and how urgent is drawn too: one scope sends most of them.
"""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from forerun.bench.workloads import folder_of
from forerun.errors import ConfigError

SHRINK = 8  # times shorter than in the trace, prompts and outputs
BLOCK = 512  # tokens of a shared block, before that
VOCAB = 256
FLOOD, OTHERS = "flood", ("one", "two", "three")
SHARE = 0.7  # of the requests that the first scope sends
URGENT = 0.2  # of the requests
FILES = {
    "azure-code": "azure_llm_trace_2023/AzureLLMInferenceTrace_code.csv",
    "azure-conv": "azure_llm_trace_2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake": "mooncake_trace/conversation_trace.jsonl.gz",
}
MADE_UP = {"mixed": 0.2, "rare": 0.009}  # share of long prompts


@dataclass(frozen=True)
class Arrival:
    """One request."""

    at: float  # seconds
    prompt: tuple[int, ...]
    output: int  # tokens
    scope: str = ""
    priority: int = 0


def read(name: str, data: Path | None, count: int) -> list[Arrival]:
    """The first requests of a trace, or of one that is made up; ConfigError where its file is not there."""
    if name in MADE_UP:
        return list(_owned(islice(_mixed(MADE_UP[name]), count)))
    folder = folder_of([FILES[name]], data) if name in FILES else None
    if folder is None:
        known = ", ".join((*MADE_UP, *FILES))
        raise ConfigError(f"trace {name!r} is not there; give --data with its folder, or one of {known}.")
    rows = {".csv": _azure, ".gz": _mooncake}[Path(FILES[name]).suffix]
    return list(_owned(islice(rows(folder / FILES[name]), count)))


def paced(arrivals: Sequence[Arrival], seconds: Callable[[Arrival], float], load: float) -> list[Arrival]:
    """The same, so close that their work, `seconds` of a busy machine each, takes `load` of the time they come in."""
    first = arrivals[0].at
    span = arrivals[-1].at - first
    wanted = sum(map(seconds, arrivals)) / load
    return [replace(a, at=(a.at - first) * wanted / span) for a in arrivals]


def _owned(arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
    """Whose, and how urgent; in order of time, no two at once."""
    rng, before = np.random.default_rng(1), -1.0
    for a in arrivals:
        scope = FLOOD if rng.random() < SHARE else OTHERS[int(rng.integers(len(OTHERS)))]
        before = max(a.at, before + 1e-3)
        yield replace(a, at=before, scope=scope, priority=-int(rng.random() < URGENT))


def _mixed(share: float) -> Iterator[Arrival]:
    """Short questions with long answers, and some long prompts with short ones."""
    rng, now = np.random.default_rng(0), 0.0
    while True:
        now += rng.exponential()
        long = rng.random() < share
        prompt, output = (rng.integers(512, 1025), rng.integers(8, 33)) if long else rng.integers(16, 97, 2)
        yield Arrival(now, _drawn(rng, int(prompt)), int(output))


def _azure(path: Path) -> Iterator[Arrival]:
    rng = np.random.default_rng(0)
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield Arrival(at, _drawn(rng, _shrunk(row["ContextTokens"])), _shrunk(row["GeneratedTokens"]))


def _mooncake(path: Path) -> Iterator[Arrival]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            parts = (_drawn(np.random.default_rng(block), BLOCK // SHRINK) for block in row["hash_ids"])
            tokens = [token for part in parts for token in part][: _shrunk(row["input_length"])]
            yield Arrival(row["timestamp"] / 1000, tuple(tokens), _shrunk(row["output_length"]))


def _shrunk(length: Any) -> int:  # noqa: ANN401 - a number, or its text
    return max(1, int(length) // SHRINK)


def _drawn(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    return tuple(rng.integers(VOCAB, size=count).tolist())
