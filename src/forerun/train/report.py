"""What a run shows and writes down: the progress bar, lines for a log, and log.jsonl.

Does not: decide when to validate or save.
"""

import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from forerun.errors import TrainError


class Reporter:
    """The face of one run."""

    def __init__(self, console: Console, name: str, folder: Path, log_steps: int) -> None:
        self.console = console
        self.path = folder / "log.jsonl"
        self.log_steps = log_steps
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(name, total=1.0, loss=0.0, speed=0.0)

    def step(self, counters: dict[str, float], done: float, loss: float, speed: float) -> None:
        """Move the bar; now and then write a line."""
        self.bar.update(self.task, completed=done, loss=loss, speed=speed)
        if counters["step"] % self.log_steps == 0:
            self.note({**counters, "loss": round(loss, 4), "tokens_per_s": round(speed)})
            if not self.console.is_terminal:
                self.say(f"step {counters['step']}  {done:.1%}  loss {loss:.3f}  {speed:,.0f} tokens/s")

    def say(self, line: str) -> None:
        # A prompt may hold square brackets, which rich would read as markup.
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def note(self, values: dict[str, object]) -> None:
        """One JSON line in the run's log."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            message = f"cannot write {str(self.path)!r} ({error.strerror}); free space, then continue with --resume."
            raise TrainError(message) from error
