"""Write a report's files whole or not at all."""

import os
from pathlib import Path

from forerun.errors import ForerunError


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the file, then rename: a full disk or an interrupt leaves no half of it, and an old one intact."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as problem:
        message = f"cannot write {path} ({problem.strerror}); free space there, or name another folder with --out."
        raise ForerunError(message) from problem
    finally:
        temporary.unlink(missing_ok=True)
