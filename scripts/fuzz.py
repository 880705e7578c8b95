"""Runs a target under atheris; `scripts/fuzz` calls this.

Does not: instrument libraries, which would slow all of it down.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))
with atheris.instrument_imports(include=["forerun.server", "forerun.engine.text", "forerun.weights", "forerun.models"]):
    from targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
