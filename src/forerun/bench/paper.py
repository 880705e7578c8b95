"""Where reports are printed and drawn: tables as wide as they need where the output is kept, and pictures as PNG.

Does not: need matplotlib unless a picture is drawn.
"""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from forerun.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDE = 170  # columns
_DPI = 110


def paper() -> Console:
    """The console for a report's tables; figures that a file keeps are never cut to a terminal's width."""
    seen = Console(highlight=False)
    return seen if seen.is_terminal else Console(width=_WIDE, highlight=False)


def sheet(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that no screen shows."""
    from matplotlib.figure import Figure  # imported late: most runs draw nothing

    return Figure(figsize=(width, height), layout="constrained")


def png(figure: "Figure") -> bytes:
    """The figure as a PNG."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def keep(picture: bytes, path: Path) -> None:
    """Write a picture whole or not at all; StorageError where the file cannot be written."""
    write_whole(path, picture, "free space there, or name another file with --out")
