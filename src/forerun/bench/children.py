"""The processes that hold the engines: orders go to one at a time, and the others are stopped.

An idle engine may keep its threads spinning for work, at the cost of whoever is being measured; a stopped process
cannot. How much an engine ran while it should have been idle is measured all the same.
Does not: know what an order means.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from forerun.errors import ForerunError

ENGINES = Path(__file__).parent / "engines"
TIMEOUT_S = 3600.0  # of one order; converting a large model takes minutes
_STOPPABLE = hasattr(signal, "SIGSTOP")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class MissingError(ForerunError):
    """A package that the engine needs is not installed in its environment."""


class RefusedError(ForerunError):
    """The engine said that it cannot do this."""


class FailedError(ForerunError):
    """The engine tried, and something went wrong; it can be asked again."""


class DiedError(ForerunError):
    """The process is gone, or did not answer in time."""


_SORRY = {"missing": MissingError, "refused": RefusedError, "failed": FailedError}


@dataclass(frozen=True)
class Engine:
    """Where an engine runs."""

    python: str  # the interpreter whose environment has the engine
    file: Path  # below ENGINES


class Child:
    """One engine's process; stopped but for the time of an order."""

    def __init__(self, engine: Engine, log: Path) -> None:
        """Start it; what it prints goes to `log`."""
        self.idle_cpu_seconds = self.idle_seconds = 0.0
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [engine.python, str(ENGINES / "child.py"), str(engine.file)]
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(  # noqa: S603 - the interpreter that the user named
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
                )
        except OSError as problem:
            raise DiedError(f"{engine.python} does not start ({problem.strerror})") from problem
        self._rest()

    def ask(self, do: str, timeout: float = TIMEOUT_S, **order: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Let it run until it has answered; what was done, or one of the errors above."""
        self._wake()
        try:
            answer = self._exchange(json.dumps({"do": do, **order}) + "\n", timeout)
        finally:
            self._rest()
        for kind, error in _SORRY.items():
            if kind in answer:
                raise error(answer[kind])
        return answer["done"] or {}

    def _exchange(self, order: str, timeout: float) -> dict[str, Any]:
        sending, coming = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # its answer, or the want of one, says it better
            sending.write(order)
            sending.flush()
        if not select.select([coming], [], [], timeout)[0]:
            self.close()
            raise DiedError(f"gave no answer within {timeout:.0f} s")
        line = coming.readline()
        if not line:
            raise DiedError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def process(self) -> int:
        """The process's number."""
        return self._process.pid

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        sending, coming = self._process.stdin, self._process.stdout
        assert sending is not None  # noqa: S101 - asked for above
        assert coming is not None  # noqa: S101
        return sending, coming

    def _last_words(self) -> str:
        code = self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how

    def _signal(self, name: str) -> None:
        if _STOPPABLE and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))

    def _rest(self) -> None:
        self._signal("SIGSTOP")
        self._since, self._spent = perf_counter(), cpu_seconds(self._process.pid)

    def _wake(self) -> None:
        self.idle_seconds += perf_counter() - self._since
        self.idle_cpu_seconds += max(0.0, cpu_seconds(self._process.pid) - self._spent)
        self._signal("SIGCONT")

    def close(self) -> None:
        """End the process, however it is."""
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def cpu_seconds(process: int) -> float:
    """CPU time of a process and its threads so far; zero where the system has no /proc."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / _TICKS


def busy_cpu_seconds() -> float:
    """CPU time that the whole machine spent so far; zero where the system has no /proc."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0.0
    times = [int(field) for field in first.split()[1:9]]  # user nice system idle iowait irq softirq steal
    return (sum(times) - times[3] - times[4]) / _TICKS
