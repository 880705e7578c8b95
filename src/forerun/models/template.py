"""Renders a chat template in a process of its own, which can be ended: templates come with model folders.

Does not: trust what is rendered; who encodes it decides which of its parts may be special tokens.
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

from forerun.errors import RequestError
from forerun.models.sandbox import SECONDS

_PROGRAM = str(Path(__file__).with_name("sandbox.py"))


class Renderer:
    """One template; its process begins with the first rendering, and again after one that was ended."""

    def __init__(self, template: str) -> None:
        self._template, self._lock = template, Lock()
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, values: Mapping[str, Any]) -> str:
        """What the template makes of these; RequestError where it refuses them, or takes too long or too much."""
        asked = json.dumps({"template": self._template, "values": values}, default=str)
        with self._lock:
            answer = self._ask(asked)
        if "problem" in answer:
            message = f"the chat template refuses these messages: {answer['problem']}"
            raise RequestError(f"{message}; change their roles or order.")
        text: str = answer["text"]
        return text

    def _ask(self, asked: str) -> dict[str, str]:
        process = self._process or self._begin()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        line = ""
        with suppress(BrokenPipeError):  # it ended while nobody asked
            process.stdin.write(asked + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if line.endswith("\n"):
            answer: dict[str, str] = json.loads(line)
            return answer
        self._process = None
        self._end()
        long = process.returncode == -SIGPROF
        return {"problem": f"it takes more than {SECONDS:g} s" if long else "its process ended"}

    def _begin(self) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", _PROGRAM]  # -P: no module from beside it, or from this folder
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)  # noqa: S603
        self._process, self._end = process, weakref.finalize(self, _end, process)
        return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]
