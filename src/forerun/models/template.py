"""Renders a chat template in a process of its own, which can be ended: templates come with model folders.

Does not: trust what is rendered; who encodes it decides which of its parts may be special tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.cell import Cell, CellError
from forerun.errors import RequestError
from forerun.models.sandbox import SECONDS


def cell() -> Cell:
    """Where templates run."""
    return Cell(Path(__file__).with_name("sandbox.py"), SECONDS)


class Renderer:
    """One template; its process begins with the first rendering, and again after one that was ended."""

    def __init__(self, template: str, place: Cell | None = None) -> None:
        self._template, self._cell = template, place or cell()

    def __call__(self, values: Mapping[str, Any]) -> str:
        """What the template makes of these; RequestError where it refuses them, or takes too long or too much."""
        try:
            answer = self._cell.ask({"template": self._template, "values": values})
        except CellError as problem:
            answer = {"problem": str(problem)}
        if "problem" in answer:
            message = f"the chat template refuses these messages: {answer['problem']}"
            raise RequestError(f"{message}; change their roles or order.")
        text: str = answer["text"]
        return text
