"""Write files whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident

from forerun.errors import ForerunError


def write_whole(path: Path, content: bytes, remedy: str, error: type[ForerunError] = ForerunError) -> None:
    """Write beside the file, then rename: a full disk or a kill leaves no half of it, and an old one intact.

    `error` is raised where it cannot be written, with what is wrong and the `remedy`. Does not: clean up after a kill,
    which leaves a file that ends in .part.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        raise error(f"cannot write {str(path)!r} ({problem.strerror}); {remedy}.") from problem
    finally:
        with suppress(OSError):  # it is gone already, or was never made
            temporary.unlink()
