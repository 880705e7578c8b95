"""The process around one engine: orders in, answers out, one JSON object a line.

Run as `python child.py ENGINE.py`. That file has a class `Engine`; an order {"do": NAME, ...} calls the method NAME
with the rest as keywords, and its answer is {"done": what it returned}, or one of
  {"missing": MODULE}     a package is not installed here
  {"refused": SENTENCE}   the engine cannot do this (the method raised NotImplementedError)
  {"failed": SENTENCE}    anything else went wrong; the process lives on
It needs nothing but the standard library, so that it runs in any environment.
Does not: time anything; the engines do.
"""

import ctypes
import importlib.util
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

ORDERS = ("decode", "prefill", "batch", "width", "speculate", "score")  # what an engine may be asked, and may lack
_PR_SET_PDEATHSIG = 1
_STATUS = Path("/proc/self/status")


def main(place: str) -> None:
    """Serve until standard input ends."""
    _end_with_parent()
    answers = _own_output()
    engine: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            engine = engine or _engine(place)
            answer = {"done": _carry_out(engine, **order)}
        except Exception as problem:  # noqa: BLE001 - whatever a foreign engine raises is an answer
            answer = _sorry(problem)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _carry_out(engine: Any, do: str, **order: Any) -> Any:  # noqa: ANN401 - the engine's own
    if do == "begin":
        return {"version": str(engine.version), "can": [name for name in ORDERS if hasattr(engine, name)]}
    if do == "memory":
        return {"peak_bytes": peak_bytes()}
    return getattr(engine, do)(**order)


def _sorry(problem: Exception) -> dict[str, str]:
    if isinstance(problem, ModuleNotFoundError):
        return {"missing": problem.name or str(problem)}
    kind = "refused" if isinstance(problem, NotImplementedError) else "failed"
    lines = str(problem).strip().splitlines() or ["it said nothing"]
    return {kind: lines[0] if kind == "refused" else f"{type(problem).__name__}: {lines[0]}"}


def _engine(place: str) -> Any:  # noqa: ANN401
    """The engine of a file, loaded by its path: its name may be that of a package it needs."""
    spec = importlib.util.spec_from_file_location("peer_engine", place)
    if spec is None or spec.loader is None:
        raise ImportError(place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Engine()


def _own_output() -> TextIO:
    """A stream that only answers go to; what libraries print goes to standard error."""
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return kept


def _end_with_parent() -> None:
    """Die when the parent does, even while stopped. Linux only; elsewhere the end of standard input is the sign."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def peak_bytes() -> "int | None":
    """The most memory that was resident so far; None where the system has no /proc."""
    if not _STATUS.is_file():
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose files are named like packages
    main(sys.argv[1])
