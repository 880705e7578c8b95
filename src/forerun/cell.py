"""A program in a process of its own, which can be ended: it answers one JSON line with one, whatever it is asked.

Does not: let two ask at once; look at what it is told.
"""

import json
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGPROF
from threading import Lock
from typing import Any


class CellError(Exception):
    """Half a sentence: why there is no answer."""


class Cell:
    """The process begins with the first question, and again after one that ended it."""

    def __init__(self, program: Path, seconds: float) -> None:
        """`seconds`: how long a question may take, by the program's own clock."""
        self._program, self._seconds, self._lock = program, seconds, Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer; CellError where there is none."""
        line = json.dumps(asked, default=str)
        with self._lock:
            return self._ask(line)

    def _ask(self, asked: str) -> dict[str, Any]:
        process = self._process or self._begin()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        line = ""
        with suppress(BrokenPipeError):  # it ended while nobody asked
            process.stdin.write(asked + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process = None
        self._end()
        long = process.returncode == -SIGPROF
        raise CellError(f"it takes more than {self._seconds:g} s" if long else "its process ended")

    def _begin(self) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", str(self._program)]  # -P: no module from beside it, or from this folder
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
        self._process, self._end = process, weakref.finalize(self, _end, process)
        return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]
