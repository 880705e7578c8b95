"""`forerun bench memory`: the most memory that loading and generating take, against weights and cache.

Measured in a fresh process. It first generates with the smallest bundled model and drops it: the resident memory that
is left is the base, the program itself. The peak after loading and generating with the model, less the base, is
compared with the weights once plus the cache's whole room. Without a drafter: a second model has weights and a cache
of its own.
Does not: enlarge a model, which would measure the enlarging; see a GPU's memory; run where
the system has no /proc.
"""

import gc
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from forerun.bench import machine
from forerun.errors import ConfigError, ForerunError

ALLOWED = 1.10  # of weights and cache
_STATUS = Path("/proc/self/status")
_MIB = 2**20
_TOKENS = 64  # of the prompt, and as many written; a quarter of the context where that is less
_TIMEOUT_S = 1800


def run(config: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in a process of its own."""
    if not _STATUS.is_file():
        raise ConfigError("peak memory is read from /proc, which this system does not have; run it on Linux.")
    if "drafter" in config:
        raise ConfigError("memory is measured without a drafter; leave --drafter out.")
    order = json.dumps({"config": dict(config), "sampling": dict(sampling)})
    child = [sys.executable, "-m", "forerun.bench.memory", order]
    done = subprocess.run(child, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603 - this program
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ForerunError(f"the measuring process failed: {last}")
    return {
        "title": "Peak memory of loading and generating",
        "benchmark": "memory",
        **machine.circumstances(),
        **json.loads(done.stdout.splitlines()[-1]),
    }


def measure(order: Mapping[str, Any]) -> dict[str, Any]:
    """The measurement itself, in the process that does nothing else."""
    from forerun.bench.speedup import model_facts
    from forerun.weights.load import trim

    use({**order, "config": {"model": "reference-drafter"}})
    gc.collect()
    trim()
    base = resident()
    llm, loaded, written = use(order)
    peak = resident()
    weights, cache = llm.model.info.weight_bytes, cache_bytes(llm)
    used = peak["peak"] - base["now"]
    return {
        "machine": machine.facts(llm.model.info),
        "model": model_facts(llm, None),
        "tokens": written,
        "weight_bytes": weights,
        "cache_bytes": cache,
        "base_bytes": base["now"],
        "loaded_bytes": loaded["now"] - base["now"],
        "loading_peak_bytes": loaded["peak"] - base["now"],
        "peak_bytes": used,
        "mapped_file_bytes": peak["file"] - base["file"],
        "allowed_bytes": int(ALLOWED * (weights + cache)),
        "ratio": used / max(weights + cache, 1),
        "reached": used <= ALLOWED * (weights + cache),
    }


def use(order: Mapping[str, Any]) -> tuple[Any, dict[str, int], int]:
    """Load a model and generate once: the LLM, what was resident between the two, and how many tokens were written."""
    from forerun.bench.drive import generate
    from forerun.bench.speedup import open_plain
    from forerun.types import Sampling

    llm, _ = open_plain({"max_requests": 1, **order["config"]})
    loaded = resident()
    length = min(_TOKENS, llm.engine.limits.context_length // 4)
    prompt = [i % llm.model.info.vocab_size for i in range(1, length + 1)]
    sampling = Sampling(**{"temperature": 0.0, "max_tokens": length, "ignore_eos": True, **order["sampling"]})
    return llm, loaded, generate(llm, [prompt], [sampling]).tokens


def resident() -> dict[str, int]:
    """Resident bytes of this process: now, the most so far, and the part that is mapped files."""
    text = _STATUS.read_text(encoding="utf-8")
    names = {"now": "VmRSS", "peak": "VmHWM", "file": "RssFile"}
    found = {key: re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE) for key, name in names.items()}
    return {key: int(match.group(1)) * 1024 for key, match in found.items() if match}


def cache_bytes(llm: Any) -> int:  # noqa: ANN401 - an LLM
    """Keys and values of all the tokens that the cache has room for."""
    return int(llm.model.info.layout.token_bytes * llm.engine.cache.free())


def show(report: dict[str, Any]) -> None:
    """A few lines for people."""
    console = Console(highlight=False)
    console.print(report["title"], style="bold")
    for name in ("weight", "cache", "loading_peak", "peak", "allowed", "mapped_file", "base"):
        console.print(f"{name.replace('_', ' '):<14}{report[f'{name}_bytes'] / _MIB:>10.1f} MiB")
    word = "reached" if report["reached"] else "MISSED"
    console.print(f"{report['ratio']:.2f} of weights and cache; goal {ALLOWED:.2f}: {word}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
