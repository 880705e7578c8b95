"""`forerun batch` by several engines at once, on Ray Data: the same lines in, the same lines out, resumable.

What OUT holds already is not done again; answers are written as blocks of lines come back, so that a run that was
killed loses at most the blocks that were in work.
Does not: keep the order of the lines; answer otherwise than `forerun.batch`, whose loop every worker runs.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from forerun.batch import OWN, Ledger, Run, count_lines, refused, row_id, twice
from forerun.errors import ConfigError
from forerun.llm import LLM
from forerun.ray.cluster import connected, everywhere, share, tell_if_none_fits

BLOCK = 64  # lines
_OURS = re.compile(r"^forerun\.errors\.\w+: (.+)$", re.MULTILINE)
_ENDED = "the workers ended before they had answered; look at Ray's log, or run `forerun batch`, which needs none."


def batch(source: str | Path, out: str | Path, *, replicas: int = 1, **config: Any) -> dict[str, Any]:  # noqa: ANN401
    """Answer the requests of `source` into `out`; how many lines were completed, failed and skipped.

    `config`: what LLM takes, in every worker.
    """
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise ConfigError(f"replicas is {replicas!r}; give a whole number of at least 1.")
    total, began, ledger = count_lines(Path(source)), perf_counter(), Ledger(Path(out))
    counts = Counter(completed=0, failed=0, skipped=0, tokens=0)
    try:
        ledger.repair()
        left = list(_left(Path(source), ledger, counts))
        if left:
            with connected():
                for row in _answers(left, replicas, everywhere({**OWN, **config})):
                    ledger.write(row)
                    _count(row, counts)
    finally:
        ledger.close()
    return {"requests": total, **counts, "seconds": round(perf_counter() - began, 3), "file": str(out)}


def _left(source: Path, ledger: Ledger, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Lines that have no answer yet; one with the name of an earlier one gets it here, where all names are known."""
    seen = set[str]()
    with source.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            name = _name(line)
            if (row_id(number) if name is None or name in seen else name) in ledger.done:
                counts["skipped"] += 1
            elif name in seen:
                row = refused(number, twice(number))
                ledger.write(row)
                _count(row, counts)
            else:
                yield {"number": number, "line": line}
            seen |= {name} if name is not None else set()


def _name(line: bytes) -> str | None:
    try:
        found = json.loads(line).get("custom_id")
    except (ValueError, RecursionError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def _count(row: Mapping[str, Any], counts: Counter[str]) -> None:
    completed = row["response"]["status_code"] == 200  # noqa: PLR2004 - OK
    counts["completed" if completed else "failed"] += 1
    counts["tokens"] += row["response"]["body"]["usage"]["completion_tokens"] if completed else 0


def _answers(left: list[dict[str, Any]], replicas: int, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of OUT, as workers finish blocks of lines; ConfigError where they end before."""
    from ray import data
    from ray.exceptions import RayError

    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    tell_if_none_fits(config)
    blocks = -(-len(left) // BLOCK)
    done = data.from_items(left, override_num_blocks=blocks).map_batches(
        Worker,
        fn_constructor_args=[config],
        batch_format="pyarrow",
        batch_size=BLOCK,
        compute=data.ActorPoolStrategy(size=min(replicas, blocks)),
        **share(config),
    )
    try:
        for row in done.iter_rows():
            yield json.loads(row["row"])
    except RayError as problem:
        said = _OURS.findall(str(problem))  # what Ray tells of an error is its traceback
        raise ConfigError(said[-1] if said else _ENDED) from problem


class Worker:
    """An engine that answers blocks of lines."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.llm = LLM(**config)

    def __call__(self, block: Any) -> dict[str, list[str]]:  # noqa: ANN401 - an Arrow table
        said = Said()
        lines = zip(block["number"].to_pylist(), block["line"].to_pylist(), strict=True)
        Run(self.llm, said, lambda _: None).go(lines)
        return {"row": said.rows}


class Said:
    """The answers of one block."""

    def __init__(self) -> None:
        self.done, self.rows = set[str](), list[str]()

    def write(self, row: Mapping[str, Any]) -> None:
        """One line more."""
        self.rows.append(json.dumps(row))
